//! `windlass process`: declares processes, which create jobs for eligible subjects.

use clap::{Args, Subcommand, ValueEnum};
use client::Client;
use serde_json::json;
use wire::{Condition, ProcessRequest, ProcessView, RawValue, RetrySettings, Selector};

use crate::cli::exit::{Exit, UsageError};
use crate::cli::list;
use crate::cli::output;
use crate::cli::output::{Details, Listing, Output, cell, moment, relative, relative_maybe};
use crate::cli::queue::job::{default_retry, json_argument};
use crate::cli::queue::queues::retry;
use crate::cli::value::{finite, positive_seconds, seconds};

#[derive(Subcommand)]
pub(crate) enum ProcessVerb {
    /// List processes with their figures
    List,
    /// Show a process
    Show { name: String },
    /// Create or change a process; settings that are not given keep their values
    Set(Box<ProcessSetArgs>),
    /// List the subjects for which a job can be created now, in order
    Eligible {
        name: String,
        /// Continue from the cursor of the previous page
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Delete a process; its jobs continue, and no more are created
    Delete { name: String },
}

#[derive(Args)]
pub(crate) struct ProcessSetArgs {
    name: String,
    /// Selector as JSON, @FILE, or - for stdin: {"all": [{"fact": "state", "equals": "provided"}]}
    #[arg(long, value_name = "JSON")]
    selector: Option<String>,
    /// Queue of its jobs
    #[arg(long)]
    queue: Option<String>,
    /// Kind of its jobs
    #[arg(long)]
    kind: Option<String>,
    /// Payload of each job as JSON [default: the subject's id and facts]
    #[arg(long, value_name = "JSON")]
    payload: Option<String>,
    /// Maximum number of unfinished jobs [default: no limit]
    #[arg(long, value_name = "N")]
    max_active: Option<i64>,
    /// Seconds before a subject that is still eligible after its job gets another job [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    every_s: Option<i64>,
    /// Process that must not run on a subject at the same time; repeat for all excluded processes
    #[arg(long, value_name = "PROCESS")]
    excludes: Vec<String>,
    /// Backoff of a subject after its first failure, in seconds
    #[arg(long, value_name = "SECONDS", value_parser = positive_seconds)]
    backoff_initial_s: Option<u64>,
    /// Maximum backoff in seconds
    #[arg(long, value_name = "SECONDS", value_parser = positive_seconds)]
    backoff_maximum_s: Option<u64>,
    /// Factor by which the backoff grows with each failure
    #[arg(long, value_name = "N", value_parser = finite)]
    backoff_exponent: Option<f64>,
    /// Share of the backoff that is added at random, from 0 to 1
    #[arg(long, value_name = "N", value_parser = finite)]
    backoff_jitter: Option<f64>,
    /// Reset a setting to its default; may be repeated
    #[arg(long, value_enum, value_name = "SETTING")]
    unset: Vec<ProcessSetting>,
}

#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum ProcessSetting {
    Payload,
    MaxActive,
    EveryS,
    Excludes,
    Backoff,
}

impl ProcessSetArgs {
    /// Returns the settings with the given flags applied. A new process has no settings before.
    ///
    /// Members of a backoff that are given neither now nor before come from `level`, the retry policy of the queue.
    fn apply(&self, before: Option<ProcessRequest>, level: RetrySettings) -> anyhow::Result<ProcessRequest> {
        let selector = self.selector.as_deref().map(selector).transpose()?;
        let (queue, kind) = (self.queue.clone(), self.kind.clone());
        let needed = |name: &str| UsageError(format!("a new process needs --{name}"));
        let mut settings = match before {
            Some(before) => ProcessRequest {
                selector: selector.unwrap_or(before.selector),
                queue: queue.unwrap_or(before.queue),
                kind: kind.unwrap_or(before.kind),
                ..before
            },
            None => ProcessRequest {
                selector: selector.ok_or_else(|| needed("selector"))?,
                queue: queue.ok_or_else(|| needed("queue"))?,
                kind: kind.ok_or_else(|| needed("kind"))?,
                payload: None,
                max_active: None,
                every_s: None,
                excludes: None,
                backoff: None,
            },
        };
        for setting in &self.unset {
            match setting {
                ProcessSetting::Payload => settings.payload = None,
                ProcessSetting::MaxActive => settings.max_active = None,
                ProcessSetting::EveryS => settings.every_s = None,
                ProcessSetting::Excludes => settings.excludes = None,
                ProcessSetting::Backoff => settings.backoff = None,
            }
        }
        if let Some(text) = &self.payload {
            settings.payload = Some(json_argument("--payload", text)?);
        }
        if !self.excludes.is_empty() {
            settings.excludes = Some(self.excludes.clone());
        }
        settings.max_active = self.max_active.or(settings.max_active);
        settings.every_s = self.every_s.or(settings.every_s);
        settings.backoff = self.backoff(settings.backoff, level);
        Ok(settings)
    }

    fn has_backoff(&self) -> bool {
        let Self { backoff_initial_s, backoff_maximum_s, backoff_exponent, backoff_jitter, .. } = self;
        backoff_initial_s.or(*backoff_maximum_s).is_some() || backoff_exponent.or(*backoff_jitter).is_some()
    }

    /// Returns the backoff with the given flags applied; `None` if neither has any.
    fn backoff(&self, settings: Option<RetrySettings>, level: RetrySettings) -> Option<RetrySettings> {
        if !self.has_backoff() {
            return settings;
        }
        let before = settings.unwrap_or_default();
        Some(RetrySettings {
            initial_s: self.backoff_initial_s.or(before.initial_s).or(level.initial_s),
            maximum_s: self.backoff_maximum_s.or(before.maximum_s).or(level.maximum_s),
            exponent: self.backoff_exponent.or(before.exponent).or(level.exponent),
            jitter: self.backoff_jitter.or(before.jitter).or(level.jitter),
        })
    }
}

pub(crate) async fn run(client: &Client, verb: ProcessVerb, format: Output) -> anyhow::Result<Exit> {
    let process = match verb {
        ProcessVerb::List => return list(client, format).await,
        ProcessVerb::Eligible { name, cursor } => return eligible(client, &name, cursor.as_deref(), format).await,
        ProcessVerb::Delete { name } => {
            client.delete_process(&name).await?;
            output::done(format, &format!("Deleted process {name}."), &json!({"name": name, "deleted": true}))?;
            return Ok(Exit::Done);
        }
        ProcessVerb::Show { name } => client.process(&name).await?,
        ProcessVerb::Set(args) => set(client, *args).await?,
    };
    match format {
        Output::Json => output::json(&process)?,
        Output::Table => show(&process)?,
    }
    Ok(Exit::Done)
}

async fn list(client: &Client, format: Output) -> anyhow::Result<Exit> {
    let page = list::every_page(async |cursor| client.processes(cursor).await).await?;
    list::print(
        format,
        &page,
        "No processes.",
        ["NAME", "QUEUE", "KIND", "ELIGIBLE", "ACTIVE", "IN BACKOFF", "OLDEST"],
        |process| {
            let active = match process.max_active {
                Some(limit) => format!("{}/{limit}", process.active),
                None => process.active.to_string(),
            };
            [
                cell(&process.name),
                cell(&process.queue),
                cell(&process.kind),
                cell(process.eligible),
                cell(active),
                cell(process.in_backoff),
                cell(relative_maybe(process.oldest)),
            ]
        },
    )?;
    Ok(Exit::Done)
}

fn show(process: &ProcessView) -> anyhow::Result<()> {
    let conditions = |conditions: &Option<Vec<Condition>>| {
        let all: Vec<String> = conditions.iter().flatten().map(condition).collect();
        (!all.is_empty()).then(|| all.join("\n"))
    };
    let mut details = Details::new();
    details
        .text("process", &process.name)
        .text("eligible", process.eligible)
        .text("active", process.active)
        .text("in backoff", process.in_backoff)
        .maybe("oldest", process.oldest.map(moment))
        .maybe("subject kind", process.selector.kind.as_ref())
        .maybe("all of", conditions(&process.selector.all))
        .maybe("any of", conditions(&process.selector.any))
        .maybe("none of", conditions(&process.selector.not))
        .text("creates", format!("{} in queue {}", process.kind, process.queue))
        .maybe("payload", process.payload.as_ref().map(|payload| payload.get()))
        .maybe("max active", process.max_active)
        .text("interval", format!("{} s", process.every_s))
        .maybe("excludes", (!process.excludes.is_empty()).then(|| process.excludes.join(", ")))
        .text("backoff", process.backoff.map_or("retry policy of the queue".into(), retry))
        .text("declared by", format!("{}, {}", process.principal, relative(process.updated_at)));
    details.print()
}

fn condition(condition: &Condition) -> String {
    let Some(fact) = &condition.fact else {
        let part = |name: &str, conditions: &Option<Vec<Condition>>| {
            let conditions: Vec<String> = conditions.iter().flatten().map(self::condition).collect();
            (!conditions.is_empty()).then(|| format!("{name} of ({})", conditions.join(", ")))
        };
        let parts = [part("all", &condition.all), part("any", &condition.any), part("none", &condition.not)];
        return parts.into_iter().flatten().collect::<Vec<_>>().join(" and ");
    };
    let json = |word: &str, value: &Option<Box<RawValue>>| Some(format!("{word} {}", value.as_ref()?.get()));
    let other = |word: &str, value: &Option<String>| Some(format!("{word} {}", value.as_ref()?));
    let tests = [
        condition.exists.map(|exists| if exists { "exists".to_owned() } else { "does not exist".to_owned() }),
        json("is", &condition.equals),
        other("equals", &condition.equals_fact),
        other("differs from", &condition.differs_from),
        json("exceeds", &condition.greater_than),
        json("is below", &condition.less_than),
        condition.older_than_s.map(|seconds| format!("is older than {seconds} s")),
    ];
    let tests: Vec<String> = tests.into_iter().flatten().collect();
    format!("{fact} {}", tests.join(" and ")).trim_end().to_owned()
}

async fn eligible(client: &Client, name: &str, cursor: Option<&str>, format: Output) -> anyhow::Result<Exit> {
    let page = client.eligible_subjects(name, cursor).await?;
    if format == Output::Json {
        output::json(&page)?;
        return Ok(Exit::Done);
    }
    if page.items.is_empty() {
        output::note("No eligible subjects.");
        return Ok(Exit::Done);
    }
    let mut listing = Listing::new(&["SUBJECT", "ELIGIBLE SINCE"]);
    for subject in &page.items {
        listing.row([cell(&subject.subject), cell(relative(subject.since))]);
    }
    listing.print()?;
    if let (Output::Table, Some(cursor)) = (format, &page.next_cursor) {
        output::note(&format!("More results: --cursor {cursor}"));
    }
    Ok(Exit::Done)
}

// The route replaces all settings, so read the current ones first and change only those that were given.
async fn set(client: &Client, args: ProcessSetArgs) -> anyhow::Result<ProcessView> {
    let before = match client.process(&args.name).await {
        Ok(process) => Some(declared(process)),
        Err(error) if error.status() == Some(404) => None,
        Err(error) => return Err(error.into()),
    };
    let queue = args.queue.as_ref().or(before.as_ref().map(|before| &before.queue));
    let level = match queue {
        Some(queue) if args.has_backoff() => match client.queue(queue).await {
            Ok(queue) => queue.settings.retry,
            Err(error) if error.status() == Some(404) => None,
            Err(error) => return Err(error.into()),
        },
        _ => None,
    };
    Ok(client.set_process(&args.name, &args.apply(before, level.unwrap_or_else(default_retry))?).await?)
}

fn selector(text: &str) -> anyhow::Result<Selector> {
    let text = json_argument("--selector", text)?;
    serde_json::from_str(text.get()).map_err(|error| UsageError(format!("--selector: {error}")).into())
}

/// The request that would declare the process as it is.
pub(crate) fn declared(process: ProcessView) -> ProcessRequest {
    ProcessRequest {
        selector: process.selector,
        queue: process.queue,
        kind: process.kind,
        payload: process.payload,
        max_active: process.max_active,
        every_s: Some(process.every_s),
        excludes: Some(process.excludes),
        backoff: process.backoff,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::tests::parse_args;

    fn level() -> RetrySettings {
        RetrySettings { initial_s: Some(1), maximum_s: Some(100), exponent: Some(3.0), jitter: Some(0.3) }
    }

    fn before() -> ProcessRequest {
        ProcessRequest {
            selector: selector(r#"{"kind": "machine"}"#).unwrap(),
            queue: "fleet".into(),
            kind: "install".into(),
            payload: None,
            max_active: Some(10),
            every_s: Some(60),
            excludes: Some(vec!["patch".into()]),
            backoff: Some(RetrySettings { initial_s: Some(9), ..RetrySettings::default() }),
        }
    }

    fn check(flags: &[&str], after: &ProcessRequest) {
        let request =
            parse_args::<ProcessSetArgs>(&[&["install"], flags].concat()).apply(Some(before()), level()).unwrap();
        let json = |request: &ProcessRequest| serde_json::to_value(request).unwrap();
        assert_eq!(json(&request), json(after), "{flags:?}");
    }

    /// Requirement W1.
    #[test]
    fn an_unnamed_process_setting_is_unchanged_and_unset_removes_one() {
        check(&[], &before());
        check(&["--max-active", "3"], &ProcessRequest { max_active: Some(3), ..before() });
        check(&["--unset", "max_active"], &ProcessRequest { max_active: None, ..before() });
        check(
            &["--unset", "excludes", "--excludes", "wipe"],
            &ProcessRequest { excludes: Some(vec!["wipe".into()]), ..before() },
        );
        let backoff = Some(RetrySettings { initial_s: Some(9), maximum_s: Some(5), ..level() });
        check(&["--backoff-maximum-s", "5"], &ProcessRequest { backoff, ..before() });
        let backoff = Some(RetrySettings { maximum_s: Some(5), ..level() });
        check(&["--unset", "backoff", "--backoff-maximum-s", "5"], &ProcessRequest { backoff, ..before() });
    }

    /// Requirement W1.
    #[test]
    fn a_new_process_needs_a_selector_a_queue_and_a_kind() {
        let error = parse_args::<ProcessSetArgs>(&["install", "--selector", "{}", "--queue", "q"])
            .apply(None, level())
            .unwrap_err();
        assert!(error.is::<UsageError>() && error.to_string().contains("--kind"), "{error}");
    }
}
