//! A job that a script asks for, by the rules of any other.

use domain::limits::{
    DEFAULT_MAX_ATTEMPTS, MAX_ATTEMPTS, PAYLOAD_BYTES, PRIORITY_MAX, PRIORITY_MIN, TAGS, TIMEOUT_S_MAX, WAIT_S_MAX,
};
use domain::process::NEEDS_A_SUBJECT;
use domain::{Label, Name, Origin, RetryPolicy, Time};
use script::HostError;
use serde::Deserialize;
use serde_json::Value;
use store::jobs::enqueue::{Extras, NewJob, Unique};
use store::triggers::target::RetryTemplate;

use super::Actor;

/// The members that a script may give; there are no webhooks among them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptJob {
    queue: String,
    kind: String,
    #[serde(default)]
    payload: Value,
    affinity: Option<String>,
    priority: Option<i64>,
    /// Instead of `run_at`: a script has no clock.
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

fn no(member: &str, detail: impl std::fmt::Display) -> HostError {
    HostError(format!("enqueue: {member} {detail}"))
}

fn name(member: &str, text: &str) -> Result<Name, HostError> {
    Name::new(text).map_err(|error| no(member, error))
}

fn label(member: &str, text: Option<String>) -> Result<Option<Label>, HostError> {
    text.map(|text| Label::new(&text).map_err(|error| no(member, error))).transpose()
}

fn within(member: &str, value: i64, least: i64, most: i64) -> Result<i64, HostError> {
    match (least..=most).contains(&value) {
        true => Ok(value),
        false => Err(no(member, format_args!("must be from {least} to {most}"))),
    }
}

fn within_maybe(member: &str, value: Option<i64>, least: i64, most: i64) -> Result<Option<i64>, HostError> {
    value.map(|value| within(member, value, least, most)).transpose()
}

pub(super) fn new(job: Value, actor: &Actor, now: Time) -> Result<NewJob, HostError> {
    let job: ScriptJob = serde_json::from_value(job).map_err(|error| HostError(format!("enqueue: {error}")))?;
    let payload = job.payload.to_string();
    if payload.len() > PAYLOAD_BYTES {
        return Err(no("payload", format_args!("may have at most {PAYLOAD_BYTES} bytes of JSON")));
    }
    if job.tags.len() > TAGS {
        return Err(no("tags", format_args!("may have at most {TAGS} items")));
    }
    let tags = job.tags.into_iter().map(|tag| label("tags", Some(tag))).collect::<Result<Vec<_>, _>>()?;
    let unique_key = label("unique_key", job.unique_key)?;
    let for_s = within_maybe("unique_for_s", job.unique_for_s, 1, WAIT_S_MAX)?;
    if for_s.is_some() && unique_key.is_none() {
        return Err(no("unique_for_s", "needs unique_key"));
    }
    let retry = |retry: RetryTemplate| {
        RetryPolicy::new(retry.initial_s, retry.maximum_s, retry.exponent, retry.jitter)
            .map_err(|error| no("retry", error))
    };
    let attempts = job.max_attempts.unwrap_or(i64::from(DEFAULT_MAX_ATTEMPTS));
    let delay_s = within_maybe("delay_s", job.delay_s, 0, WAIT_S_MAX)?;
    let subject = job.subject.map(|text| Label::of_subject(&text).map_err(|error| no("subject", error))).transpose()?;
    if job.process.is_some() && subject.is_none() {
        return Err(no("process", NEEDS_A_SUBJECT));
    }
    let origin = Origin::Script { trigger: actor.trigger, cause: actor.cause.clone() };
    Ok(NewJob {
        queue: Name::of_queue(&job.queue).map_err(|error| no("queue", error))?,
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
            timeout_s: within_maybe("timeout_s", job.timeout_s, 1, TIMEOUT_S_MAX)?,
            tags: tags.into_iter().flatten().collect(),
            triggered_by: origin.stored(),
            depth: actor.depth,
            ..Extras::default()
        })),
    })
}
