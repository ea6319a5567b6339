//! Stores in a dead letter what a replay needs: every property of the failed job except its payload. The job itself may be
//! pruned before the replay.

use domain::{Affinity, JobId, Label, Name};
use serde::{Deserialize, Serialize};

use crate::db::codec::{from_json, retry_from_json, retry_to_json, to_json};
use crate::error::StoreError;
use crate::queue::enqueue::{Extras, NewJob};
use crate::queue::get::StoredJob;

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct StoredWork {
    queue: String,
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    affinity: Option<String>,
    priority: i32,
    max_attempts: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_s: Option<i64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrency_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    webhook: Option<String>,
}

/// Encodes the properties of a failed job.
pub(crate) fn of_job(job: &StoredJob) -> String {
    to_json(&StoredWork {
        queue: job.lane.queue.to_string(),
        kind: job.lane.kind.to_string(),
        affinity: job.lane.affinity.as_ref().map(ToString::to_string),
        priority: job.lane.priority,
        max_attempts: job.max_attempts,
        retry: job.retry.map(retry_to_json),
        timeout_s: job.timeout_s,
        tags: job.tags.clone(),
        subject: job.subject.clone(),
        process: job.process.clone(),
        run: job.run.clone(),
        concurrency_key: job.concurrency_key.clone(),
        webhook: job.webhook.clone(),
    })
}

/// Builds the job of a replay.
pub(crate) fn to_job(
    work: &str,
    payload: Box<str>,
    principal: &str,
    parent: Option<JobId>,
    triggered_by: Option<String>,
    depth: i32,
) -> Result<NewJob, StoreError> {
    let work: StoredWork = from_json(work)?;
    let label = |text: &Option<String>| text.as_deref().map(Label::stored);
    let affinity: Affinity = label(&work.affinity);
    Ok(NewJob {
        queue: Name::stored(&work.queue),
        kind: Name::stored(&work.kind),
        payload,
        affinity,
        priority: work.priority,
        run_at: None,
        max_attempts: work.max_attempts,
        principal: principal.into(),
        extras: Some(Box::new(Extras {
            subject: label(&work.subject),
            process: work.process.as_deref().map(Name::stored),
            run: label(&work.run),
            concurrency_key: label(&work.concurrency_key),
            retry: work.retry.as_deref().map(retry_from_json).transpose()?,
            timeout_s: work.timeout_s,
            tags: work.tags.iter().map(|tag| Label::stored(tag)).collect(),
            webhook: work.webhook,
            parent,
            triggered_by,
            depth,
            ..Extras::default()
        })),
    })
}
