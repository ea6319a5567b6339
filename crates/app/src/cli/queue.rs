//! `windlass queue`: settings, counts, pausing (Q12).

use clap::{Args, Subcommand, ValueEnum};
use client::Client;
use wire::{QueueSettings, QueueView, RetrySettings, WebhookSettings};

use super::exit::{Exit, UsageError};
use super::job::RetryArgs;
use super::list;
use super::output::{self, Details, Output, cell, relative_maybe};
use super::value::finite;
use crate::config::webhook_secret;

#[derive(Subcommand)]
pub(crate) enum Verb {
    /// List queues with their counts.
    List,
    /// Show one queue with its settings.
    Show { name: String },
    /// Change settings of a queue, or make one with them; what is not named stays as it is.
    Set(Box<SetArgs>),
    /// Stop handing out a queue's jobs; those that run go on. A queue that is not there is made, and begins paused.
    Pause {
        name: String,
        /// Why, for whoever wonders.
        #[arg(long)]
        reason: Option<String>,
    },
    /// Hand out a queue's jobs again.
    Resume { name: String },
}

#[derive(Args)]
pub(crate) struct SetArgs {
    name: String,
    /// Jobs that may run at once; any number, unless set.
    #[arg(long, value_name = "N")]
    concurrency: Option<i64>,
    /// Jobs with the same concurrency key that may run at once; 1 unless set.
    #[arg(long, value_name = "N")]
    per_key: Option<i64>,
    /// Jobs that may start in a second; any number, unless set.
    #[arg(long, value_name = "N", value_parser = finite)]
    rate_per_s: Option<f64>,
    /// How long other affinities may be passed over; 300 unless set.
    #[arg(long, value_name = "SECONDS")]
    starvation_s: Option<i64>,
    #[command(flatten)]
    retry: RetryArgs,
    /// How long an attempt may take; without end, unless this or the job says so.
    #[arg(long, value_name = "SECONDS")]
    timeout_s: Option<i64>,
    /// How long ended jobs are kept; 604800, a week, unless set.
    #[arg(long, value_name = "SECONDS")]
    retention_s: Option<i64>,
    /// A phase beside the built-in ones; all that the queue shall have.
    #[arg(long = "phase", value_name = "NAME")]
    phases: Vec<String>,
    /// Where to send each change of state.
    #[arg(long, value_name = "URL")]
    webhook: Option<String>,
    /// What to sign with: whsec_ and base64. Give the new and the old one while receivers change over. With --webhook it may
    /// come from WINDLASS_WEBHOOK_SECRET, where no process list shows it.
    #[arg(long, value_delimiter = ' ', value_name = "SECRET")]
    webhook_secret: Vec<String>,
    /// Put a setting back to its default. `kinds`, what single kinds do differently, is set over HTTP.
    #[arg(long, value_enum, value_name = "SETTING")]
    unset: Vec<Setting>,
}

#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Setting {
    Concurrency,
    PerKey,
    RatePerS,
    StarvationS,
    Retry,
    TimeoutS,
    RetentionS,
    Phases,
    Webhook,
    Kinds,
}

pub(super) async fn run(client: &Client, verb: Verb, format: Output) -> anyhow::Result<Exit> {
    let queue = match verb {
        Verb::List => return list(client, format).await,
        Verb::Show { name } => client.queue(&name).await?,
        Verb::Set(args) => set(client, *args).await?,
        Verb::Pause { name, reason } => pause(client, &name, reason.as_deref()).await?,
        Verb::Resume { name } => client.resume_queue(&name).await?,
    };
    match format {
        Output::Json => output::json(&queue)?,
        Output::Table => show(&queue)?,
    }
    Ok(Exit::Done)
}

/// A queue may be paused before its first job comes; one that was made by a slip of the hand is told.
async fn pause(client: &Client, name: &str, reason: Option<&str>) -> anyhow::Result<QueueView> {
    let is_new = matches!(client.queue(name).await, Err(error) if error.status() == Some(404));
    let queue = client.pause_queue(name, reason).await?;
    if is_new {
        output::note(&format!("{name} was not there and was made."));
    }
    Ok(queue)
}

async fn list(client: &Client, format: Output) -> anyhow::Result<Exit> {
    let page = list::every_page(async |cursor| client.queues(cursor).await).await?;
    list::print(
        format,
        &page,
        "There are no queues yet. Pushing a job makes its queue.",
        ["NAME", "STATE", "SCHEDULED", "QUEUED", "RUNNING", "SUCCEEDED", "FAILED", "CANCELED", "OLDEST"],
        |queue| {
            let counts = queue.counts;
            [
                cell(&queue.name),
                state(queue),
                cell(counts.scheduled),
                cell(counts.queued),
                cell(counts.running),
                cell(counts.succeeded),
                cell(counts.failed),
                cell(counts.canceled),
                cell(relative_maybe(queue.oldest_waiting_at)),
            ]
        },
    )?;
    Ok(Exit::Done)
}

fn state(queue: &QueueView) -> comfy_table::Cell {
    output::state(if queue.paused { "paused" } else { "active" })
}

fn show(queue: &QueueView) -> anyhow::Result<()> {
    let settings = &queue.settings;
    let counts = queue.counts;
    let mut details = Details::new();
    details.text("queue", &queue.name).add("state", state(queue));
    if queue.paused {
        let by = queue.paused_by.as_deref().unwrap_or("someone");
        details.text("paused by", format!("{by}, {}", relative_maybe(queue.paused_at)));
        details.maybe("reason", queue.paused_reason.as_ref());
    }
    details
        .text("waiting", format!("{} queued, {} scheduled", counts.queued, counts.scheduled))
        .text("running", counts.running)
        .text(
            "ended",
            format!("{} succeeded, {} failed, {} canceled", counts.succeeded, counts.failed, counts.canceled),
        )
        .maybe("oldest", queue.oldest_waiting_at.map(output::relative))
        .text("swaps", format!("{} made, {} avoided", queue.swaps_made, queue.swaps_avoided))
        .maybe("concurrency", settings.concurrency)
        .maybe("per key", settings.per_key)
        .maybe("rate", settings.rate_per_s.map(|rate| format!("{rate} in a second")))
        .maybe("starvation", settings.starvation_s.map(seconds))
        .maybe("retry", settings.retry.map(retry))
        .maybe("timeout", settings.timeout_s.map(seconds))
        .maybe("retention", settings.retention_s.map(seconds))
        .maybe("phases", settings.phases.as_ref().map(|phases| phases.join(", ")))
        .maybe("webhook", settings.webhook.as_ref().map(|webhook| &webhook.url))
        .maybe("kinds", settings.kinds.as_ref().map(|kinds| kinds.keys().cloned().collect::<Vec<_>>().join(", ")));
    details.print()
}

fn seconds(seconds: i64) -> String {
    format!("{seconds} s")
}

pub(super) fn retry(retry: RetrySettings) -> String {
    let mut text = format!("{} s", retry.initial_s.unwrap_or(1));
    if let Some(exponent) = retry.exponent {
        text += &format!(", times {exponent}");
    }
    if let Some(maximum) = retry.maximum_s {
        text += &format!(", at most {maximum} s");
    }
    if let Some(jitter) = retry.jitter {
        text += &format!(", jitter {jitter}");
    }
    text
}

/// The route replaces all settings, and a person means the named ones: so the present ones are read first.
async fn set(client: &Client, args: SetArgs) -> anyhow::Result<QueueView> {
    let mut settings = match client.queue(&args.name).await {
        Ok(queue) => queue.settings,
        Err(error) if error.status() == Some(404) => QueueSettings::default(),
        Err(error) => return Err(error.into()),
    };
    for setting in &args.unset {
        match setting {
            Setting::Concurrency => settings.concurrency = None,
            Setting::PerKey => settings.per_key = None,
            Setting::RatePerS => settings.rate_per_s = None,
            Setting::StarvationS => settings.starvation_s = None,
            Setting::Retry => settings.retry = None,
            Setting::TimeoutS => settings.timeout_s = None,
            Setting::RetentionS => settings.retention_s = None,
            Setting::Phases => settings.phases = None,
            Setting::Webhook => settings.webhook = None,
            Setting::Kinds => settings.kinds = None,
        }
    }
    settings.concurrency = args.concurrency.or(settings.concurrency);
    settings.per_key = args.per_key.or(settings.per_key);
    settings.rate_per_s = args.rate_per_s.or(settings.rate_per_s);
    settings.starvation_s = args.starvation_s.or(settings.starvation_s);
    settings.retry = args.retry.over(settings.retry);
    settings.timeout_s = args.timeout_s.or(settings.timeout_s);
    settings.retention_s = args.retention_s.or(settings.retention_s);
    settings.phases = Some(args.phases).filter(|phases| !phases.is_empty()).or(settings.phases);
    settings.webhook = webhook(settings.webhook, args.webhook, args.webhook_secret, webhook_secret())?;
    Ok(client.set_queue(&args.name, &settings).await?)
}

/// Without secrets the server keeps those that the same webhook has. The variable counts where a webhook is named, and nowhere
/// else: whoever has it set changes other settings too.
fn webhook(
    before: Option<WebhookSettings>,
    url: Option<String>,
    mut secrets: Vec<String>,
    variable: Option<String>,
) -> Result<Option<WebhookSettings>, UsageError> {
    if let (Some(_), true, Some(variable)) = (&url, secrets.is_empty(), variable) {
        secrets = variable.split_whitespace().map(str::to_owned).collect();
    }
    let secrets = Some(secrets).filter(|secrets| !secrets.is_empty());
    match (url.or(before.map(|before| before.url)), secrets) {
        (Some(url), secrets) => Ok(Some(WebhookSettings { url, secret: None, secrets })),
        (None, Some(_)) => Err(UsageError("--webhook-secret signs for a webhook: give --webhook URL too".into())),
        (None, None) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is sent of the webhook of a queue that has one at `http://old`.
    fn sent(url: Option<&str>, secrets: &[&str], variable: Option<&str>) -> (String, Vec<String>) {
        let before = WebhookSettings { url: "http://old".into(), ..WebhookSettings::default() };
        let secrets = secrets.iter().map(ToString::to_string).collect();
        let settings = webhook(Some(before), url.map(Into::into), secrets, variable.map(Into::into));
        let settings = settings.unwrap().unwrap();
        (settings.url, settings.secrets.unwrap_or_default())
    }

    #[test]
    fn q10_the_variable_does_not_replace_secrets_of_a_webhook_that_was_not_named() {
        assert_eq!(sent(None, &[], Some("a")), ("http://old".into(), vec![]));
        assert_eq!(sent(None, &["b"], Some("a")), ("http://old".into(), vec!["b".into()]));
        assert_eq!(sent(Some("http://new"), &[], Some("a b")), ("http://new".into(), vec!["a".into(), "b".into()]));
        assert_eq!(sent(Some("http://new"), &["c"], Some("a")), ("http://new".into(), vec!["c".into()]));
    }

    #[test]
    fn q10_a_secret_without_a_webhook_is_refused() {
        assert!(webhook(None, None, Vec::new(), Some("a".into())).unwrap().is_none());
        let error = webhook(None, None, vec!["b".into()], None).unwrap_err();
        assert!(error.to_string().contains("--webhook URL"), "{error}");
    }
}
