//! `windlass job push`, and how payloads are written on the command line.

use std::io::Read;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use client::Client;
use jiff::Timestamp;
use wire::{JobRequest, RawValue, RetrySettings, WebhookSettings};

use super::follow;
use crate::cli::exit::{Exit, UsageError};
use crate::cli::output::{self, Output};
use crate::cli::value::{duration, finite};
use crate::config::webhook_secret;

#[derive(Args)]
pub(crate) struct PushArgs {
    /// Where it waits; a queue that is not there is made.
    #[arg(long)]
    queue: String,
    /// What is to be done; workers choose by it.
    #[arg(long)]
    kind: String,
    /// JSON, @FILE, or - for stdin; null unless given.
    #[arg(long, value_name = "JSON")]
    payload: Option<String>,
    /// What a worker must have loaded, say a model's name; nothing, unless given.
    #[arg(long)]
    affinity: Option<String>,
    /// Higher first, from -32768 to 32767; 0 unless given.
    #[arg(long, allow_negative_numbers = true)]
    priority: Option<i64>,
    /// Not before this time, in RFC 3339; at once, unless given.
    #[arg(long, value_name = "TIME")]
    run_at: Option<Timestamp>,
    /// Not before this long: 30s, 5m, 2h, 1d.
    #[arg(long = "in", value_name = "DURATION", value_parser = duration, conflicts_with = "run_at")]
    delay: Option<Duration>,
    /// What the work is done on.
    #[arg(long)]
    subject: Option<String>,
    /// The process on that subject which it is part of.
    #[arg(long)]
    process: Option<String>,
    /// The group of jobs it belongs to.
    #[arg(long)]
    run: Option<String>,
    /// While a job with this key lives in the queue, no second one is made.
    #[arg(long, value_name = "KEY")]
    unique_key: Option<String>,
    /// Make the key from these instead: kind, payload.
    #[arg(long, value_name = "PART", value_delimiter = ',', conflicts_with = "unique_key")]
    unique_by: Vec<String>,
    /// Hold the key for this long instead of until the job ends.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    unique_for: Option<Duration>,
    /// Jobs with the same key run one at a time, or as many as the queue's `per_key` allows.
    #[arg(long, value_name = "KEY")]
    concurrency_key: Option<String>,
    /// How often it may be begun, from 1 to 1000; 3 unless given.
    #[arg(long, value_name = "N")]
    max_attempts: Option<i64>,
    #[command(flatten)]
    retry: RetryArgs,
    /// How long an attempt may take; without end, unless this or the queue says so.
    #[arg(long, value_name = "SECONDS")]
    timeout_s: Option<i64>,
    /// A word to find it by. May be given more than once.
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// Where to send each change of state.
    #[arg(long, value_name = "URL")]
    webhook: Option<String>,
    /// What to sign with: whsec_ and base64. It is meant to come from WINDLASS_WEBHOOK_SECRET, where no process list shows it.
    #[arg(long, value_name = "SECRET")]
    webhook_secret: Option<String>,
    /// The same key and job give the same job for a day, however often they are pushed.
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Wait until the job has ended, and print its result.
    #[arg(long)]
    wait: bool,
    /// Give up waiting after this long; the job goes on.
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "wait")]
    wait_timeout: Option<Duration>,
}

#[derive(Args)]
pub(crate) struct RetryArgs {
    /// How long to wait after the first failure: 1 if any other --retry flag is given, else as the queue says, which is 5
    /// unless it was set.
    #[arg(long, value_name = "SECONDS")]
    retry_initial_s: Option<u64>,
    /// The longest wait between two attempts: 86400 if any other --retry flag is given, else as the queue says, or 3600.
    #[arg(long, value_name = "SECONDS")]
    retry_maximum_s: Option<u64>,
    /// By how much the wait grows with each failure: 1 if any other --retry flag is given, else as the queue says, or 2.
    #[arg(long, value_name = "FACTOR", value_parser = finite)]
    retry_exponent: Option<f64>,
    /// The share of the wait that may be added at random, from 0 to 1: 0 if any other --retry flag is given, else as the
    /// queue says, or 0.1.
    #[arg(long, value_name = "SHARE", value_parser = finite)]
    retry_jitter: Option<f64>,
}

impl RetryArgs {
    /// The settings with what was named here changed; `None` when there is nothing in either.
    pub(crate) fn over(&self, settings: Option<RetrySettings>) -> Option<RetrySettings> {
        let before = settings.unwrap_or_default();
        let after = RetrySettings {
            initial_s: self.retry_initial_s.or(before.initial_s),
            maximum_s: self.retry_maximum_s.or(before.maximum_s),
            exponent: self.retry_exponent.or(before.exponent),
            jitter: self.retry_jitter.or(before.jitter),
        };
        if after == RetrySettings::default() { settings } else { Some(after) }
    }
}

/// The variable counts where a webhook is named, and nowhere else: whoever has it set pushes other jobs too.
fn webhook(
    url: Option<String>,
    secret: Option<String>,
    variable: Option<String>,
) -> Result<Option<WebhookSettings>, UsageError> {
    match (url, secret) {
        (Some(url), secret) => Ok(Some(WebhookSettings { url, secret: secret.or(variable), secrets: None })),
        (None, Some(_)) => Err(UsageError("--webhook-secret signs for a webhook: give --webhook URL too".into())),
        (None, None) => Ok(None),
    }
}

pub(super) async fn run(client: &Client, args: PushArgs, format: Output) -> anyhow::Result<Exit> {
    let request = JobRequest {
        queue: args.queue,
        kind: args.kind,
        payload: args.payload.as_deref().map(|text| json_argument("--payload", text)).transpose()?,
        affinity: args.affinity,
        priority: args.priority,
        run_at: match args.delay {
            Some(delay) => Some(Timestamp::now().checked_add(delay).context("--in reaches too far")?),
            None => args.run_at,
        },
        subject: args.subject,
        process: args.process,
        run: args.run,
        unique_key: args.unique_key,
        unique_by: Some(args.unique_by).filter(|parts| !parts.is_empty()),
        unique_for_s: args.unique_for.map(|duration| duration.as_secs() as i64),
        concurrency_key: args.concurrency_key,
        max_attempts: args.max_attempts,
        retry: args.retry.over(None),
        timeout_s: args.timeout_s,
        tags: Some(args.tags).filter(|tags| !tags.is_empty()),
        webhook: webhook(args.webhook, args.webhook_secret, webhook_secret())?,
    };
    let job = match &args.idempotency_key {
        Some(key) => client.enqueue_once(key, &request).await?,
        None => client.enqueue(&request).await?,
    };
    if args.wait {
        return follow::wait(client, job.id, args.wait_timeout, format).await;
    }
    match format {
        Output::Json => output::json(&job)?,
        Output::Table => output::line(&job.id.to_string())?,
    }
    Ok(Exit::Done)
}

/// JSON as it is, from a file as `@FILE`, or from stdin as `-`. `name` is what the argument is called where it is typed.
pub(crate) fn json_argument(name: &str, argument: &str) -> anyhow::Result<Box<RawValue>> {
    let text = if argument == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).with_context(|| format!("cannot read {name} from stdin"))?;
        text
    } else if let Some(path) = argument.strip_prefix('@') {
        std::fs::read_to_string(path).with_context(|| format!("cannot read {name} from {path}"))?
    } else {
        argument.to_owned()
    };
    serde_json::from_str(&text).map_err(|error| UsageError(format!("{name} is not JSON: {error}")).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_must_be_json_and_is_not_is_named() {
        assert_eq!(json_argument("--payload", r#"{"a": 1}"#).unwrap().get(), r#"{"a": 1}"#);
        assert_eq!(
            json_argument("--filter", "hello").unwrap_err().to_string(),
            "--filter is not JSON: expected value at line 1 column 1"
        );
    }

    #[test]
    fn q10_a_secret_needs_a_webhook_and_the_variable_waits_for_one() {
        let given = |url: Option<&str>, secret: Option<&str>| {
            let settings = webhook(url.map(Into::into), secret.map(Into::into), Some("variable".into()));
            settings.map(|settings| settings.map(|settings| settings.secret))
        };
        assert_eq!(given(None, None).unwrap(), None);
        assert_eq!(given(Some("http://a"), None).unwrap(), Some(Some("variable".into())));
        assert_eq!(given(Some("http://a"), Some("flag")).unwrap(), Some(Some("flag".into())));
        assert!(given(None, Some("flag")).unwrap_err().to_string().contains("--webhook URL"));
    }

    #[test]
    fn retry_settings_that_are_not_named_stay() {
        let args =
            RetryArgs { retry_initial_s: Some(5), retry_maximum_s: None, retry_exponent: None, retry_jitter: None };
        let before = RetrySettings { maximum_s: Some(60), ..RetrySettings::default() };
        let after = RetrySettings { initial_s: Some(5), ..before };
        assert_eq!(args.over(Some(before)), Some(after));
        let nothing = RetryArgs { retry_initial_s: None, ..args };
        assert_eq!(nothing.over(None), None);
        assert_eq!(nothing.over(Some(RetrySettings::default())), Some(RetrySettings::default()));
    }
}
