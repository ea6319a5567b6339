//! The dead-letter queue: jobs, runs and deliveries that failed for good. A letter keeps the payload, every attempt with its
//! error, and what a replay needs, until a user or a handler resolves it.

pub mod get;
pub mod groups;
pub mod handlers;
pub mod insert;
pub(crate) mod jobs;
pub mod list;
pub mod prune;
pub mod replay;
pub mod resolve;
pub(crate) mod work;

use domain::{DeadLetterId, EventId, JobError, JobId, Resolution, Time, TriggerId};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::db::codec::{error_from_json, from_json};
use crate::db::tx::Row;
use crate::error::StoreError;
use crate::triggers::dead_letters::handlers::LetterHandler;

#[derive(Clone, Debug)]
pub struct DeadLetter {
    pub id: DeadLetterId,
    /// The original event. For a job without a trigger, the job's own id.
    pub event: EventId,
    pub source: String,
    pub op: String,
    /// `None` for a job without a trigger and for a manual replay.
    pub trigger: Option<TriggerId>,
    pub script: Option<Uuid>,
    pub job: Option<JobId>,
    pub queue: Option<String>,
    pub kind: Option<String>,
    /// JSON, verbatim.
    pub payload: String,
    pub depth: i32,
    /// Oldest first.
    pub attempts: Vec<FailedAttempt>,
    pub last_error: JobError,
    pub created_at: Time,
    pub resolved: Option<Resolved>,
    /// The dead-letter triggers that ran for it, by the time at which they ended. A locked letter is read without them.
    pub handlers: Vec<LetterHandler>,
    /// JSON: what a replay creates, except the payload. See `work` and `deliveries::letters`.
    pub(crate) work: Option<String>,
}

/// How, when and by whom a letter was resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    pub resolution: Resolution,
    pub at: Time,
    pub by: String,
    pub note: Option<String>,
    /// The new job, delivery or event of a replay.
    pub replayed_as: Option<Uuid>,
}

/// A failed attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedAttempt {
    pub at: Time,
    pub error: JobError,
}

#[derive(Serialize, Deserialize)]
struct StoredAttempt {
    at: i64,
    code: String,
    message: String,
    retryable: bool,
}

impl From<&FailedAttempt> for StoredAttempt {
    fn from(attempt: &FailedAttempt) -> Self {
        let JobError { code, message, retryable } = attempt.error.clone();
        Self { at: attempt.at.micros(), code, message, retryable }
    }
}

impl From<StoredAttempt> for FailedAttempt {
    fn from(stored: StoredAttempt) -> Self {
        let StoredAttempt { at, code, message, retryable } = stored;
        Self { at: Time::from_micros(at), error: JobError { code, message, retryable } }
    }
}

pub(crate) fn attempts_to_json(attempts: &[FailedAttempt]) -> String {
    crate::db::codec::to_json(&attempts.iter().map(StoredAttempt::from).collect::<Vec<_>>())
}

pub(crate) fn attempts_from_json(text: &str) -> Result<Vec<FailedAttempt>, StoreError> {
    Ok(from_json::<Vec<StoredAttempt>>(text)?.into_iter().map(FailedAttempt::from).collect())
}

/// Decodes a letter.
fn read(row: &Row) -> Result<DeadLetter, StoreError> {
    let resolution = row.opt_text("resolution")?.as_deref().and_then(Resolution::parse);
    let resolved = match (row.opt_time("resolved_at")?, resolution) {
        (Some(at), Some(resolution)) => Some(Resolved {
            resolution,
            at,
            by: row.opt_text("resolved_by")?.unwrap_or_default(),
            note: row.opt_text("note")?,
            replayed_as: row.opt_uuid("replayed_as")?,
        }),
        _ => None,
    };
    Ok(DeadLetter {
        id: DeadLetterId::new(row.uuid("id")?),
        event: EventId::new(row.uuid("event_id")?),
        source: row.text("source")?,
        op: row.text("op")?,
        trigger: row.opt_uuid("trigger_id")?.map(TriggerId::new),
        script: row.opt_uuid("script_id")?,
        job: row.opt_uuid("job")?.map(JobId::new),
        queue: row.opt_text("queue")?,
        kind: row.opt_text("kind")?,
        payload: row.text("payload")?,
        depth: row.int("depth")? as i32,
        attempts: attempts_from_json(&row.text("attempts")?)?,
        last_error: error_from_json(&row.text("last_error")?)?,
        created_at: row.time("created_at")?,
        resolved,
        handlers: Vec::new(),
        work: row.opt_text("work")?,
    })
}
