//! Validates a job that a script enqueues, with the same rules as the API.

use domain::fleet::process::NEEDS_A_SUBJECT;
use domain::limits::{
    DEFAULT_MAX_ATTEMPTS, MAX_ATTEMPTS, PAYLOAD_BYTES, PRIORITY_MAX, PRIORITY_MIN, TAGS, TIMEOUT_MAX_S, WAIT_MAX_S,
};
use domain::{Label, Name, Origin, RetryPolicy, Time};
use script::HostError;
use serde::Deserialize;
use serde_json::Value;
use store::queue::enqueue::{Extras, NewJob, Unique};
use store::triggers::target::RetryTemplate;

use super::Actor;

/// The members that a script may set. Webhooks are deliberately absent.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptJob {
    queue: String,
    kind: String,
    #[serde(default)]
    payload: Value,
    affinity: Option<String>,
    priority: Option<i64>,
    /// Replaces `run_at`, because a script has no clock.
    delay_s: Option<i64>,
    subject: Option<String>,
    process: Option<String>,
    run: Option<String>,
    unique_key: Option<String>,
    unique_for_s: Option<i64>,
    concurrency_key: Option<String>,
    max_attempts: Option<i64>,
    retry: Option<RetryTemplate>,
    timeout_s: Option<i64>,
    #[serde(default)]
    tags: Vec<String>,
}

fn invalid(member: &str, detail: impl std::fmt::Display) -> HostError {
    HostError(format!("enqueue: {member} {detail}"))
}

fn name(member: &str, text: &str) -> Result<Name, HostError> {
    Name::new(text).map_err(|error| invalid(member, error))
}

fn label(member: &str, text: Option<String>) -> Result<Option<Label>, HostError> {
    text.map(|text| Label::new(&text).map_err(|error| invalid(member, error))).transpose()
}

fn within(member: &str, value: i64, least: i64, most: i64) -> Result<i64, HostError> {
    match (least..=most).contains(&value) {
        true => Ok(value),
        false => Err(invalid(member, format_args!("must be from {least} to {most}"))),
    }
}

fn within_maybe(member: &str, value: Option<i64>, least: i64, most: i64) -> Result<Option<i64>, HostError> {
    value.map(|value| within(member, value, least, most)).transpose()
}

pub(super) fn new(job: Value, actor: &Actor, now: Time) -> Result<NewJob, HostError> {
    let job: ScriptJob = serde_json::from_value(job).map_err(|error| HostError(format!("enqueue: {error}")))?;
    let payload = job.payload.to_string();
    if payload.len() > PAYLOAD_BYTES {
        return Err(invalid("payload", format_args!("may have at most {PAYLOAD_BYTES} bytes of JSON")));
    }
    if job.tags.len() > TAGS {
        return Err(invalid("tags", format_args!("may have at most {TAGS} items")));
    }
    let tags = job.tags.into_iter().map(|tag| label("tags", Some(tag))).collect::<Result<Vec<_>, _>>()?;
    let unique_key = label("unique_key", job.unique_key)?;
    let for_s = within_maybe("unique_for_s", job.unique_for_s, 1, WAIT_MAX_S)?;
    if for_s.is_some() && unique_key.is_none() {
        return Err(invalid("unique_for_s", "requires unique_key"));
    }
    let retry = |retry: RetryTemplate| {
        RetryPolicy::new(retry.initial_s, retry.maximum_s, retry.exponent, retry.jitter)
            .map_err(|error| invalid("retry", error))
    };
    let attempts = job.max_attempts.unwrap_or(i64::from(DEFAULT_MAX_ATTEMPTS));
    let delay_s = within_maybe("delay_s", job.delay_s, 0, WAIT_MAX_S)?;
    let subject =
        job.subject.map(|text| Label::of_subject(&text).map_err(|error| invalid("subject", error))).transpose()?;
    if job.process.is_some() && subject.is_none() {
        return Err(invalid("process", NEEDS_A_SUBJECT));
    }
    let origin = Origin::Script { trigger: actor.trigger, cause: actor.cause.clone() };
    Ok(NewJob {
        queue: Name::of_queue(&job.queue).map_err(|error| invalid("queue", error))?,
        kind: name("kind", &job.kind)?,
        payload: payload.into(),
        affinity: label("affinity", job.affinity)?,
        priority: within("priority", job.priority.unwrap_or(0), PRIORITY_MIN, PRIORITY_MAX)? as i32,
        run_at: delay_s.filter(|delay| *delay > 0).map(|delay| now.plus_s(delay)),
        max_attempts: within("max_attempts", attempts, 1, MAX_ATTEMPTS)? as i32,
        principal: actor.principal.clone(),
        extras: Some(Box::new(Extras {
            subject,
            process: job.process.map(|process| name("process", &process)).transpose()?,
            run: label("run", job.run)?,
            unique: unique_key.map(|key| Unique { key: key.to_string(), for_s }),
            concurrency_key: label("concurrency_key", job.concurrency_key)?,
            retry: job.retry.map(retry).transpose()?,
            timeout_s: within_maybe("timeout_s", job.timeout_s, 1, TIMEOUT_MAX_S)?,
            tags: tags.into_iter().flatten().collect(),
            triggered_by: origin.stored(),
            depth: actor.depth,
            ..Extras::default()
        })),
    })
}
