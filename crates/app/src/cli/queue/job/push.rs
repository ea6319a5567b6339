//! `windlass job push`, and parsing of JSON arguments.

use std::io::Read;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use client::Client;
use domain::RetryPolicy;
use jiff::Timestamp;
use wire::{JobRequest, QueueSettings, RawValue, RetrySettings, WebhookSettings};

use super::follow;
use crate::cli::exit::{Exit, UsageError};
use crate::cli::output::{self, Output};
use crate::cli::value::{duration, finite, positive_seconds, seconds, time};
use crate::config::webhook_secret;

#[derive(Args)]
pub(crate) struct PushArgs {
    /// Queue of the job; a missing queue is created
    #[arg(long)]
    queue: String,
    /// Kind of the job; workers select handlers by it
    #[arg(long)]
    kind: String,
    /// Payload: JSON, @FILE, or - for stdin [default: null]
    #[arg(long, value_name = "JSON")]
    payload: Option<String>,
    /// What a worker must have loaded, for example the name of a model [default: nothing]
    #[arg(long)]
    affinity: Option<String>,
    /// Priority from -32768 to 32767; higher runs first [default: 0]
    #[arg(long, allow_negative_numbers = true)]
    priority: Option<i64>,
    /// Earliest start: 2026-12-01T10:00:00Z, or '2026-12-01 10:00' in local time [default: now]
    #[arg(long, value_name = "TIME", value_parser = time)]
    run_at: Option<Timestamp>,
    /// Delay before the earliest start: 30s, 5m, 2h, 1d
    #[arg(long = "in", value_name = "DURATION", value_parser = duration, conflicts_with = "run_at")]
    delay: Option<Duration>,
    /// Subject that the job works on
    #[arg(long)]
    subject: Option<String>,
    /// Process on the subject that the job belongs to
    #[arg(long)]
    process: Option<String>,
    /// Group of jobs that the job belongs to
    #[arg(long)]
    run: Option<String>,
    /// While an unfinished job with this key exists in the queue, do not enqueue another
    #[arg(long, value_name = "KEY")]
    unique_key: Option<String>,
    /// Derive the unique key from these parts: kind, payload
    #[arg(long, value_name = "PART", value_delimiter = ',', conflicts_with = "unique_key")]
    unique_by: Vec<String>,
    /// Reserve the unique key for this duration instead of until the job ends
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    unique_for: Option<Duration>,
    /// Jobs with the same key run one at a time, or as many as the queue's `per_key` setting allows
    #[arg(long, value_name = "KEY")]
    concurrency_key: Option<String>,
    /// Maximum attempts (1–1000) [default: 3]
    #[arg(long, value_name = "N")]
    max_attempts: Option<i64>,
    #[command(flatten)]
    retry: RetryArgs,
    /// Timeout of an attempt [default: the queue's timeout, else none]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout_s: Option<i64>,
    /// Seconds after which the job fails in any state [default: none]
    #[arg(long, value_name = "SECONDS")]
    deadline_s: Option<i64>,
    /// Tag to find the job by; may be repeated
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// URL that receives every state change
    #[arg(long, value_name = "URL")]
    webhook: Option<String>,
    /// Secret that signs webhook requests: whsec_ and base64. Set WINDLASS_WEBHOOK_SECRET instead: a flag is visible in
    /// process listings
    #[arg(long, value_name = "SECRET")]
    webhook_secret: Option<String>,
    /// Return the same job for repeated pushes with this key, for one day
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Wait until the job has ended and print its result
    #[arg(long)]
    wait: bool,
    /// Stop waiting after this duration; the job continues
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "wait")]
    wait_timeout: Option<Duration>,
}

#[derive(Args)]
pub(crate) struct EstimateArgs {
    /// Queue of the job
    #[arg(long)]
    queue: String,
    /// Kind of the job
    #[arg(long)]
    kind: String,
    /// What a worker must have loaded, for example the name of a model [default: nothing]
    #[arg(long)]
    affinity: Option<String>,
    /// Priority from -32768 to 32767; higher runs first [default: 0]
    #[arg(long, allow_negative_numbers = true)]
    priority: Option<i64>,
    /// Delay before the earliest start: 30s, 5m, 2h, 1d [default: none]
    #[arg(long = "in", value_name = "DURATION", value_parser = duration)]
    delay: Option<Duration>,
    /// Maximum attempts (1–1000) [default: 3]
    #[arg(long, value_name = "N")]
    max_attempts: Option<i64>,
    #[command(flatten)]
    retry: RetryArgs,
}

#[derive(Args)]
pub(crate) struct RetryArgs {
    /// Backoff after the first failure [default: the queue's, else 5]
    #[arg(long, value_name = "SECONDS", value_parser = positive_seconds)]
    retry_initial_s: Option<u64>,
    /// Maximum backoff [default: the queue's, else 3600]
    #[arg(long, value_name = "SECONDS", value_parser = positive_seconds)]
    retry_maximum_s: Option<u64>,
    /// Factor by which the backoff grows with each failure [default: the queue's, else 2]
    #[arg(long, value_name = "FACTOR", value_parser = finite)]
    retry_exponent: Option<f64>,
    /// Share of the backoff that is added at random, from 0 to 1 [default: the queue's, else 0.1]
    #[arg(long, value_name = "SHARE", value_parser = finite)]
    retry_jitter: Option<f64>,
}

impl RetryArgs {
    fn is_empty(&self) -> bool {
        let Self { retry_initial_s, retry_maximum_s, retry_exponent, retry_jitter } = self;
        retry_initial_s.or(*retry_maximum_s).is_none() && retry_exponent.or(*retry_jitter).is_none()
    }

    /// Returns `settings` with the given flags applied. The server would set members that are missing to constants of
    /// its own, so they come from the defaults of a queue.
    pub(crate) fn apply(&self, settings: Option<RetrySettings>) -> Option<RetrySettings> {
        if self.is_empty() {
            return settings;
        }
        let (before, default) = (settings.unwrap_or_default(), default_retry());
        Some(RetrySettings {
            initial_s: self.retry_initial_s.or(before.initial_s).or(default.initial_s),
            maximum_s: self.retry_maximum_s.or(before.maximum_s).or(default.maximum_s),
            exponent: self.retry_exponent.or(before.exponent).or(default.exponent),
            jitter: self.retry_jitter.or(before.jitter).or(default.jitter),
        })
    }

    /// The retry policy of a new job: `None` without flags, else the policy of the queue with the flags applied.
    async fn for_job(&self, client: &Client, queue: &str, kind: &str) -> anyhow::Result<Option<RetrySettings>> {
        if self.is_empty() {
            return Ok(None);
        }
        let settings = match client.queue(queue).await {
            Ok(queue) => queue.settings,
            // The first job creates its queue.
            Err(error) if error.status() == Some(404) => QueueSettings::default(),
            Err(error) if error.status() == Some(403) => {
                output::note(
                    "The token may not read the queue: retry settings that are not given have their defaults.",
                );
                QueueSettings::default()
            }
            Err(error) => return Err(error.into()),
        };
        let of_kind = settings.kinds.and_then(|kinds| kinds.get(kind).and_then(|kind| kind.retry));
        Ok(self.apply(of_kind.or(settings.retry)))
    }
}

/// The retry policy of a queue without one.
pub(crate) fn default_retry() -> RetrySettings {
    let policy = RetryPolicy::QUEUE_DEFAULT;
    RetrySettings {
        initial_s: Some(policy.initial_s()),
        maximum_s: Some(policy.maximum_s()),
        exponent: Some(policy.exponent()),
        jitter: Some(policy.jitter()),
    }
}

/// The environment variable applies only if a webhook URL is given: a user who exports it also pushes jobs without
/// webhooks.
fn webhook(
    url: Option<String>,
    secret: Option<String>,
    variable: Option<String>,
) -> Result<Option<WebhookSettings>, UsageError> {
    match (url, secret) {
        (Some(url), secret) => Ok(Some(WebhookSettings { url, secret: secret.or(variable), secrets: None })),
        (None, Some(_)) => Err(UsageError("--webhook-secret requires --webhook URL".into())),
        (None, None) => Ok(None),
    }
}

pub(super) async fn run(client: &Client, args: PushArgs, format: Output) -> anyhow::Result<Exit> {
    let retry = args.retry.for_job(client, &args.queue, &args.kind).await?;
    let request = JobRequest {
        queue: args.queue,
        kind: args.kind,
        payload: args.payload.as_deref().map(|text| json_argument("--payload", text)).transpose()?,
        affinity: args.affinity,
        priority: args.priority,
        run_at: match args.delay {
            Some(delay) => Some(Timestamp::now().checked_add(delay).context("the time given by --in is out of range")?),
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
        retry,
        timeout_s: args.timeout_s,
        deadline_s: args.deadline_s,
        debounce: None,
        batch: None,
        traceparent: None,
        tags: Some(args.tags).filter(|tags| !tags.is_empty()),
        webhook: webhook(args.webhook, args.webhook_secret, webhook_secret())?,
    };
    let job = match &args.idempotency_key {
        Some(key) => client.enqueue_idempotent(key, &request).await?,
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

/// Shows when such a job would end.
pub(super) async fn estimate(client: &Client, args: EstimateArgs, format: Output) -> anyhow::Result<Exit> {
    let retry = args.retry.for_job(client, &args.queue, &args.kind).await?;
    let run_at = args.delay.map(|delay| Timestamp::now().checked_add(delay));
    let request = JobRequest {
        queue: args.queue,
        kind: args.kind,
        affinity: args.affinity,
        priority: args.priority,
        run_at: run_at.transpose().context("the time given by --in is out of range")?,
        max_attempts: args.max_attempts,
        retry,
        ..JobRequest::default()
    };
    super::show::estimate(&client.estimate(&request).await?, format)
}

/// Parses a JSON argument: literal JSON, `@FILE`, or `-` for stdin. `name` is the argument's name for error messages.
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
    serde_json::from_str(&text).map_err(|error| UsageError(format!("{name} must be JSON: {error}")).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_that_is_not_valid_json_is_named() {
        assert_eq!(json_argument("--payload", r#"{"a": 1}"#).unwrap().get(), r#"{"a": 1}"#);
        assert_eq!(
            json_argument("--filter", "hello").unwrap_err().to_string(),
            "--filter must be JSON: expected value at line 1 column 1"
        );
    }

    /// Requirement Q10.
    #[test]
    fn a_webhook_secret_requires_a_webhook_and_the_variable_applies_only_with_one() {
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
    fn an_unnamed_retry_setting_is_unchanged() {
        let args =
            RetryArgs { retry_initial_s: Some(7), retry_maximum_s: None, retry_exponent: None, retry_jitter: None };
        let before = RetrySettings { maximum_s: Some(60), jitter: Some(0.5), ..RetrySettings::default() };
        let after = RetrySettings { initial_s: Some(7), exponent: Some(2.0), ..before };
        assert_eq!(args.apply(Some(before)), Some(after));
        assert_eq!(args.apply(None), Some(RetrySettings { initial_s: Some(7), ..default_retry() }));
        let nothing = RetryArgs { retry_initial_s: None, ..args };
        assert_eq!(nothing.apply(None), None);
        assert_eq!(nothing.apply(Some(RetrySettings::default())), Some(RetrySettings::default()));
    }
}
