//! `windlass queue`: shows, configures, pauses and resumes queues.

use clap::{Args, Subcommand, ValueEnum};
use client::Client;
use domain::address::{AddressClass, classify};
use engine::outbound::parse_url;
use serde_json::json;
use wire::{PruneView, QueueSettings, QueueView, RetrySettings, WebhookSettings};

use super::job::RetryArgs;
use super::job::bulk::{self, BulkAction};
use crate::cli::exit::{Exit, UsageError};
use crate::cli::list;
use crate::cli::output;
use crate::cli::output::{Details, Output, cell, relative_maybe};
use crate::cli::value::{finite, seconds};
use crate::config::webhook_secret;

#[derive(Subcommand)]
pub(crate) enum QueueVerb {
    /// List queues with their counts
    List,
    /// Show a queue with its settings
    Show { name: String },
    /// Create or change a queue; settings that are not given keep their values
    Set(Box<QueueSetArgs>),
    /// Stop handing out jobs; running jobs continue. A missing queue is created as paused
    Pause {
        name: String,
        /// Reason, shown while the queue is paused
        #[arg(long)]
        reason: Option<String>,
    },
    /// Resume handing out jobs
    Resume { name: String },
    /// Delete ended jobs now, with their artifacts; their history is kept
    Prune {
        name: String,
        /// Delete jobs that ended at least this long ago [default: the queue's retention]
        #[arg(long, value_name = "SECONDS", value_parser = seconds)]
        older_than_s: Option<i64>,
    },
    /// Cancel all jobs of a queue that have not started
    Purge {
        name: String,
        /// Cancel running jobs too
        #[arg(long)]
        running: bool,
        /// Show which jobs would be canceled
        #[arg(long)]
        dry_run: bool,
        /// Confirm the cancellation
        #[arg(long, required_unless_present = "dry_run")]
        yes: bool,
    },
    /// Delete a queue without unfinished jobs: its settings, counters and ended jobs
    Delete {
        name: String,
        /// Confirm the deletion of the ended jobs
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Args)]
pub(crate) struct QueueSetArgs {
    name: String,
    /// Maximum number of running jobs [default: no limit]
    #[arg(long, value_name = "N")]
    concurrency: Option<i64>,
    /// Maximum number of running jobs with the same concurrency key [default: 1]
    #[arg(long, value_name = "N")]
    per_key: Option<i64>,
    /// Maximum number of jobs started per second [default: no limit]
    #[arg(long, value_name = "N", value_parser = finite)]
    rate_per_s: Option<f64>,
    /// Seconds for which older jobs of other affinities may be passed over [default: 300]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    starvation_s: Option<i64>,
    #[command(flatten)]
    retry: RetryArgs,
    /// Timeout of an attempt, unless the job sets one [default: none]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout_s: Option<i64>,
    /// Retention of ended jobs [default: 604800, a week]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    retention_s: Option<i64>,
    /// Phase in addition to the built-in ones; repeat for all phases of the queue
    #[arg(long = "phase", value_name = "NAME")]
    phases: Vec<String>,
    /// URL that receives every state change of jobs without a webhook of their own
    #[arg(long, value_name = "URL")]
    webhook: Option<String>,
    /// Secret that signs webhook requests: whsec_ and base64. To rotate it, give the new and the old one until
    /// receivers have changed. With --webhook it can come from WINDLASS_WEBHOOK_SECRET, which does not show in process
    /// listings
    #[arg(long, value_delimiter = ' ', value_name = "SECRET")]
    webhook_secret: Vec<String>,
    /// Reset a setting to its default; may be repeated. `kinds` can only be set over HTTP
    #[arg(long, value_enum, value_name = "SETTING")]
    unset: Vec<QueueSetting>,
}

#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum QueueSetting {
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

pub(crate) async fn run(client: &Client, verb: QueueVerb, format: Output) -> anyhow::Result<Exit> {
    let queue = match verb {
        QueueVerb::List => return list(client, format).await,
        QueueVerb::Show { name } => client.queue(&name).await?,
        QueueVerb::Set(args) => set(client, *args).await?,
        QueueVerb::Pause { name, reason } => pause(client, &name, reason.as_deref()).await?,
        QueueVerb::Resume { name } => client.resume_queue(&name).await?,
        QueueVerb::Prune { name, older_than_s } => return prune(client, &name, older_than_s, format).await,
        QueueVerb::Purge { name, running, dry_run, yes: _ } => {
            // A queue that does not exist is reported instead of canceling nothing.
            client.queue(&name).await?;
            let states = if running { "waiting,scheduled,queued,loading,working" } else { "waiting,scheduled,queued" };
            let matching = [format!("queue={name}"), format!("state={states}")];
            let filters = bulk::parse(BulkAction::Cancel, &matching)?;
            return bulk::run(client, BulkAction::Cancel, filters, dry_run, format).await;
        }
        QueueVerb::Delete { name, yes } => return delete(client, &name, yes, format).await,
    };
    match format {
        Output::Json => output::json(&queue)?,
        Output::Table => show(&queue)?,
    }
    Ok(Exit::Done)
}

// A request deletes a bounded number of jobs.
async fn prune(client: &Client, name: &str, older_than_s: Option<i64>, format: Output) -> anyhow::Result<Exit> {
    let mut total = PruneView { pruned: 0, more: true };
    while total.more {
        let PruneView { pruned, more } = client.prune_queue(name, older_than_s).await?;
        total = PruneView { pruned: total.pruned + pruned, more };
    }
    match format {
        Output::Json => output::json(&total)?,
        Output::Table => output::line(&format!("{} jobs deleted", total.pruned))?,
    }
    Ok(Exit::Done)
}

async fn delete(client: &Client, name: &str, yes: bool, format: Output) -> anyhow::Result<Exit> {
    let counts = client.queue(name).await?.counts;
    let unfinished = counts.waiting + counts.scheduled + counts.queued + counts.running;
    if unfinished > 0 {
        let unfinished = output::many(unfinished as usize, "unfinished job");
        let remedy = format!("`windlass queue purge {name} --running --yes` cancels them");
        return Err(UsageError(format!("the queue {name} has {unfinished}; {remedy}")).into());
    }
    if !yes {
        let what =
            format!("the ended jobs of the queue {name} and their artifacts will be lost; pass --yes to confirm");
        return Err(UsageError(what).into());
    }
    let mut pruned = 0;
    loop {
        let PruneView { pruned: some, more } = client.prune_queue(name, Some(0)).await?;
        pruned += some;
        if !more {
            break;
        }
    }
    client.delete_queue(name).await?;
    let deleted = json!({"name": name, "deleted": true, "pruned": pruned});
    output::done(format, &format!("Deleted queue {name} with {} ended jobs.", pruned), &deleted)?;
    Ok(Exit::Done)
}

// A queue may be paused before its first job exists; report a new queue in case its name was a typing mistake.
async fn pause(client: &Client, name: &str, reason: Option<&str>) -> anyhow::Result<QueueView> {
    let is_new = matches!(client.queue(name).await, Err(error) if error.status() == Some(404));
    let queue = client.pause_queue(name, reason).await?;
    if is_new {
        output::note(&format!("Created queue {name}."));
    }
    Ok(queue)
}

async fn list(client: &Client, format: Output) -> anyhow::Result<Exit> {
    let page = list::every_page(async |cursor| client.queues(cursor).await).await?;
    list::print(
        format,
        &page,
        "No queues. Pushing a job creates its queue.",
        ["NAME", "STATE", "WAITING", "SCHEDULED", "QUEUED", "RUNNING", "SUCCEEDED", "FAILED", "CANCELED", "OLDEST"],
        |queue| {
            let counts = queue.counts;
            [
                cell(&queue.name),
                state(queue),
                cell(counts.waiting),
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
        .text(
            "waiting",
            format!("{} queued, {} scheduled, {} waiting", counts.queued, counts.scheduled, counts.waiting),
        )
        .text("running", counts.running)
        .text(
            "ended",
            format!("{} succeeded, {} failed, {} canceled", counts.succeeded, counts.failed, counts.canceled),
        )
        .maybe("oldest", queue.oldest_waiting_at.map(output::relative))
        .text("swaps", format!("{} made, {} avoided", queue.swaps_made, queue.swaps_avoided))
        .maybe("concurrency", settings.concurrency)
        .maybe("per key", settings.per_key)
        .maybe("rate", settings.rate_per_s.map(|rate| format!("{rate} per second")))
        .maybe("starvation", settings.starvation_s.map(in_seconds))
        .maybe("retry", settings.retry.map(retry))
        .maybe("timeout", settings.timeout_s.map(in_seconds))
        .maybe("retention", settings.retention_s.map(in_seconds))
        .maybe("phases", settings.phases.as_ref().map(|phases| phases.join(", ")))
        .maybe("webhook", settings.webhook.as_ref().map(|webhook| &webhook.url))
        .maybe("kinds", settings.kinds.as_ref().map(|kinds| kinds.keys().cloned().collect::<Vec<_>>().join(", ")));
    details.print()
}

fn in_seconds(seconds: i64) -> String {
    format!("{seconds} s")
}

pub(crate) fn retry(retry: RetrySettings) -> String {
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

// The route replaces all settings, so read the current ones first and change only those that were given.
async fn set(client: &Client, args: QueueSetArgs) -> anyhow::Result<QueueView> {
    let mut settings = match client.queue(&args.name).await {
        Ok(queue) => queue.settings,
        Err(error) if error.status() == Some(404) => QueueSettings::default(),
        Err(error) => return Err(error.into()),
    };
    for setting in &args.unset {
        match setting {
            QueueSetting::Concurrency => settings.concurrency = None,
            QueueSetting::PerKey => settings.per_key = None,
            QueueSetting::RatePerS => settings.rate_per_s = None,
            QueueSetting::StarvationS => settings.starvation_s = None,
            QueueSetting::Retry => settings.retry = None,
            QueueSetting::TimeoutS => settings.timeout_s = None,
            QueueSetting::RetentionS => settings.retention_s = None,
            QueueSetting::Phases => settings.phases = None,
            QueueSetting::Webhook => settings.webhook = None,
            QueueSetting::Kinds => settings.kinds = None,
        }
    }
    settings.concurrency = args.concurrency.or(settings.concurrency);
    settings.per_key = args.per_key.or(settings.per_key);
    settings.rate_per_s = args.rate_per_s.or(settings.rate_per_s);
    settings.starvation_s = args.starvation_s.or(settings.starvation_s);
    settings.retry = args.retry.apply(settings.retry);
    settings.timeout_s = args.timeout_s.or(settings.timeout_s);
    settings.retention_s = args.retention_s.or(settings.retention_s);
    settings.phases = Some(args.phases).filter(|phases| !phases.is_empty()).or(settings.phases);
    let url_before = settings.webhook.as_ref().map(|webhook| webhook.url.clone());
    settings.webhook = webhook(settings.webhook, args.webhook, args.webhook_secret, webhook_secret())?;
    let queue = client.set_queue(&args.name, &settings).await?;
    if let Some(webhook) = settings.webhook.filter(|webhook| url_before.as_ref() != Some(&webhook.url)) {
        warnings(&webhook).into_iter().for_each(output::note);
    }
    Ok(queue)
}

/// Warnings about a new webhook that the server accepts, but whose requests may be refused or not be verifiable.
fn warnings(webhook: &WebhookSettings) -> Vec<&'static str> {
    let mut warnings = Vec::new();
    // Only the server knows how it resolves a name.
    let is_private = parse_url(&webhook.url).is_ok_and(|url| {
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        match host.parse() {
            Ok(address) => classify(address) != AddressClass::Public,
            Err(_) => host == "localhost" || host.ends_with(".localhost"),
        }
    });
    if is_private {
        warnings.push(
            "Warning: the webhook has a private address, and the server refuses to send requests there unless it runs with \
             --allow-private or --allow-network.",
        );
    }
    if webhook.secrets.is_none() {
        warnings.push(
            "Warning: the webhook has no secret, so its receiver cannot verify who sent a request. Give one with \
             --webhook-secret.",
        );
    }
    warnings
}

/// The new webhook settings. Without secrets the server retains those stored for the same URL. The environment variable
/// applies only if a webhook URL is given: a user who exports it also changes other settings.
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
        (None, Some(_)) => Err(UsageError("--webhook-secret requires --webhook URL".into())),
        (None, None) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The request for a queue with the webhook `http://old`.
    fn sent(url: Option<&str>, secrets: &[&str], variable: Option<&str>) -> (String, Vec<String>) {
        let before = WebhookSettings { url: "http://old".into(), ..WebhookSettings::default() };
        let secrets = secrets.iter().map(ToString::to_string).collect();
        let settings = webhook(Some(before), url.map(Into::into), secrets, variable.map(Into::into));
        let settings = settings.unwrap().unwrap();
        (settings.url, settings.secrets.unwrap_or_default())
    }

    /// Requirement Q10.
    #[test]
    fn the_secret_variable_does_not_change_an_existing_webhook() {
        assert_eq!(sent(None, &[], Some("a")), ("http://old".into(), vec![]));
        assert_eq!(sent(None, &["b"], Some("a")), ("http://old".into(), vec!["b".into()]));
        assert_eq!(sent(Some("http://new"), &[], Some("a b")), ("http://new".into(), vec!["a".into(), "b".into()]));
        assert_eq!(sent(Some("http://new"), &["c"], Some("a")), ("http://new".into(), vec!["c".into()]));
    }

    /// Requirement Q10.
    #[test]
    fn a_private_address_and_a_missing_secret_of_a_webhook_are_warned_about() {
        let check = |url: &str, secrets: Option<Vec<String>>| {
            let found = warnings(&WebhookSettings { url: url.into(), secret: None, secrets });
            let has = |text: &str| found.iter().any(|warning| warning.contains(text));
            (has("private address"), has("no secret"))
        };
        let secret = || Some(vec!["whsec_c2VjcmV0".to_owned()]);
        assert_eq!(check("https://example.com/hook", secret()), (false, false));
        assert_eq!(check("https://example.com/hook", None), (false, true));
        for private in ["127.0.0.1:8080", "localhost", "app.localhost:1", "10.1.2.3", "[::1]:9", "169.254.169.254"] {
            assert_eq!(check(&format!("http://{private}/hook"), secret()), (true, false), "{private}");
        }
        assert_eq!(check("http://93.184.216.34/hook", secret()), (false, false));
    }

    /// Requirement Q10.
    #[test]
    fn a_webhook_secret_without_a_webhook_is_rejected() {
        assert!(webhook(None, None, Vec::new(), Some("a".into())).unwrap().is_none());
        let error = webhook(None, None, vec!["b".into()], None).unwrap_err();
        assert!(error.to_string().contains("--webhook URL"), "{error}");
    }
}
