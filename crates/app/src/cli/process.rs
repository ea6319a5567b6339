//! `windlass process`: what is to be done to which subjects (W1, W7).

use clap::{Args, Subcommand, ValueEnum};
use client::Client;
use serde_json::json;
use wire::{Condition, ProcessRequest, ProcessView, RetrySettings, Selector};

use super::exit::{Exit, UsageError};
use super::job::json_argument;
use super::list;
use super::output::{self, Details, Listing, Output, cell, moment, relative, relative_maybe};
use super::queue::retry;
use super::value::finite;

#[derive(Subcommand)]
pub(crate) enum Verb {
    /// List processes with their figures.
    List,
    /// Show one process.
    Show { name: String },
    /// Declare a process, or change what is named of one.
    Set(Box<SetArgs>),
    /// List the subjects for which a job may be made now, first come first.
    Eligible {
        name: String,
        /// Where the page before ended.
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Take a process back; its jobs go on, and no more are made.
    Delete { name: String },
}

#[derive(Args)]
pub(crate) struct SetArgs {
    name: String,
    /// Which subjects, as JSON: {"all": [{"fact": "state", "equals": "provided"}]}; @FILE, or - for stdin.
    #[arg(long, value_name = "JSON")]
    selector: Option<String>,
    /// The queue its jobs go to.
    #[arg(long)]
    queue: Option<String>,
    /// The kind of its jobs.
    #[arg(long)]
    kind: Option<String>,
    /// What each job carries, as JSON; the subject's id and facts, unless set.
    #[arg(long, value_name = "JSON")]
    payload: Option<String>,
    /// Unfinished jobs at once.
    #[arg(long, value_name = "N")]
    max_active: Option<i64>,
    /// How soon a subject that is still eligible after its job is looked at again.
    #[arg(long, value_name = "SECONDS")]
    every_s: Option<i64>,
    /// A process that may not run on a subject while this one does; all that it shall exclude.
    #[arg(long, value_name = "PROCESS")]
    excludes: Vec<String>,
    /// How long a subject is left alone after a failure.
    #[arg(long, value_name = "SECONDS")]
    backoff_initial_s: Option<u64>,
    /// The longest it is left alone.
    #[arg(long, value_name = "SECONDS")]
    backoff_maximum_s: Option<u64>,
    /// By what the wait grows from failure to failure.
    #[arg(long, value_name = "N", value_parser = finite)]
    backoff_exponent: Option<f64>,
    /// The share of the wait that chance may add, from 0 to 1.
    #[arg(long, value_name = "N", value_parser = finite)]
    backoff_jitter: Option<f64>,
    /// Put a setting back to its default.
    #[arg(long, value_enum, value_name = "SETTING")]
    unset: Vec<Setting>,
}

#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Setting {
    Payload,
    MaxActive,
    EveryS,
    Excludes,
    Backoff,
}

impl SetArgs {
    /// The settings with what was named here changed; a new process has none before.
    fn over(&self, before: Option<ProcessRequest>) -> anyhow::Result<ProcessRequest> {
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
                Setting::Payload => settings.payload = None,
                Setting::MaxActive => settings.max_active = None,
                Setting::EveryS => settings.every_s = None,
                Setting::Excludes => settings.excludes = None,
                Setting::Backoff => settings.backoff = None,
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
        settings.backoff = self.backoff(settings.backoff);
        Ok(settings)
    }

    /// The backoff with what was named here changed; `None` when there is nothing in either.
    fn backoff(&self, settings: Option<RetrySettings>) -> Option<RetrySettings> {
        let before = settings.unwrap_or_default();
        let after = RetrySettings {
            initial_s: self.backoff_initial_s.or(before.initial_s),
            maximum_s: self.backoff_maximum_s.or(before.maximum_s),
            exponent: self.backoff_exponent.or(before.exponent),
            jitter: self.backoff_jitter.or(before.jitter),
        };
        if after == RetrySettings::default() { settings } else { Some(after) }
    }
}

pub(super) async fn run(client: &Client, verb: Verb, format: Output) -> anyhow::Result<Exit> {
    let process = match verb {
        Verb::List => return list(client, format).await,
        Verb::Eligible { name, cursor } => return eligible(client, &name, cursor.as_deref(), format).await,
        Verb::Delete { name } => {
            client.delete_process(&name).await?;
            output::done(format, &format!("Process {name} was taken back."), &json!({"name": name, "deleted": true}))?;
            return Ok(Exit::Done);
        }
        Verb::Show { name } => client.process(&name).await?,
        Verb::Set(args) => set(client, *args).await?,
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
        "There are no processes.",
        ["NAME", "QUEUE", "KIND", "ELIGIBLE", "ACTIVE", "IN BACKOFF", "OLDEST"],
        |process| {
            let active = match process.max_active {
                Some(most) => format!("{}/{most}", process.active),
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
        .maybe("subjects of", process.selector.kind.as_ref())
        .maybe("all of", conditions(&process.selector.all))
        .maybe("any of", conditions(&process.selector.any))
        .maybe("none of", conditions(&process.selector.not))
        .text("makes", format!("{} in queue {}", process.kind, process.queue))
        .maybe("payload", process.payload.as_ref().map(|payload| payload.get()))
        .maybe("at once", process.max_active)
        .text("again after", format!("{} s", process.every_s))
        .maybe("excludes", (!process.excludes.is_empty()).then(|| process.excludes.join(", ")))
        .text("backoff", process.backoff.map_or("as the queue retries".into(), retry))
        .text("declared by", format!("{}, {}", process.principal, relative(process.updated_at)));
    details.print()
}

fn condition(condition: &Condition) -> String {
    let fact = &condition.fact;
    match (condition.exists, &condition.equals, condition.older_than_s) {
        (Some(true), _, _) => format!("{fact} is there"),
        (Some(false), _, _) => format!("{fact} is not there"),
        (_, Some(value), _) => format!("{fact} is {}", value.get()),
        (_, _, Some(seconds)) => format!("{fact} is older than {seconds} s"),
        _ => fact.clone(),
    }
}

async fn eligible(client: &Client, name: &str, cursor: Option<&str>, format: Output) -> anyhow::Result<Exit> {
    let page = client.eligible_subjects(name, cursor).await?;
    if format == Output::Json {
        output::json(&page)?;
        return Ok(Exit::Done);
    }
    if page.items.is_empty() {
        output::note("No subject is eligible now.");
        return Ok(Exit::Done);
    }
    let mut listing = Listing::new(&["SUBJECT", "ELIGIBLE SINCE"]);
    for subject in &page.items {
        listing.row([cell(&subject.subject), cell(relative(subject.since))]);
    }
    listing.print()?;
    if let (Output::Table, Some(cursor)) = (format, &page.next_cursor) {
        output::note(&format!("There are more: --cursor {cursor}"));
    }
    Ok(Exit::Done)
}

/// The route replaces everything, and a person means what is named: so the present settings are read first.
async fn set(client: &Client, args: SetArgs) -> anyhow::Result<ProcessView> {
    let before = match client.process(&args.name).await {
        Ok(process) => Some(declared(process)),
        Err(error) if error.status() == Some(404) => None,
        Err(error) => return Err(error.into()),
    };
    Ok(client.set_process(&args.name, &args.over(before)?).await?)
}

fn selector(text: &str) -> anyhow::Result<Selector> {
    let text = json_argument("--selector", text)?;
    serde_json::from_str(text.get()).map_err(|error| UsageError(format!("--selector: {error}")).into())
}

/// A process as it would be declared to be what it is.
fn declared(process: ProcessView) -> ProcessRequest {
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
    use crate::cli::tests::typed;

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
        let request = typed::<SetArgs>(&[&["install"], flags].concat()).over(Some(before())).unwrap();
        let json = |request: &ProcessRequest| serde_json::to_value(request).unwrap();
        assert_eq!(json(&request), json(after), "{flags:?}");
    }

    #[test]
    fn w1_what_is_not_named_of_a_process_stays_and_a_setting_goes_by_name() {
        check(&[], &before());
        check(&["--max-active", "3"], &ProcessRequest { max_active: Some(3), ..before() });
        check(&["--unset", "max_active"], &ProcessRequest { max_active: None, ..before() });
        check(
            &["--unset", "excludes", "--excludes", "wipe"],
            &ProcessRequest { excludes: Some(vec!["wipe".into()]), ..before() },
        );
        let backoff = Some(RetrySettings { maximum_s: Some(5), ..RetrySettings::default() });
        check(&["--unset", "backoff", "--backoff-maximum-s", "5"], &ProcessRequest { backoff, ..before() });
    }

    #[test]
    fn w1_a_new_process_needs_a_selector_a_queue_and_a_kind() {
        let error = typed::<SetArgs>(&["install", "--selector", "{}", "--queue", "q"]).over(None).unwrap_err();
        assert!(error.is::<UsageError>() && error.to_string().contains("--kind"), "{error}");
    }
}
