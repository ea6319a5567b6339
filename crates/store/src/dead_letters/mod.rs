//! Dead letters: what failed for good waits for a person, with all it takes to decide (T6–T9).

pub mod get;
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

use crate::codec::{error_from_json, from_json};
use crate::error::StoreError;
use crate::tx::Row;

#[derive(Clone, Debug)]
pub struct DeadLetter {
    pub id: DeadLetterId,
    /// The event at the beginning; of a plain job, the job's own id.
    pub event: EventId,
    pub source: String,
    pub op: String,
    /// Nothing for a plain job and for a replay by hand.
    pub trigger: Option<TriggerId>,
    pub script: Option<Uuid>,
    pub job: Option<JobId>,
    pub queue: Option<String>,
    pub kind: Option<String>,
    /// Verbatim.
    pub payload: String,
    pub depth: i32,
    /// Oldest first.
    pub attempts: Vec<Attempt>,
    pub last_error: JobError,
    pub created_at: Time,
    pub resolved: Option<Resolved>,
    /// JSON: what a replay makes, beside the payload.
    pub(crate) work: Option<String>,
}

/// How it was dealt with, by whom and when: all of it or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    pub resolution: Resolution,
    pub at: Time,
    pub by: String,
    pub note: Option<String>,
    /// The new job, or the new event where a trigger's run is played again.
    pub replayed_as: Option<Uuid>,
}

/// One try that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
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

impl From<&Attempt> for StoredAttempt {
    fn from(attempt: &Attempt) -> Self {
        let JobError { code, message, retryable } = attempt.error.clone();
        Self { at: attempt.at.micros(), code, message, retryable }
    }
}

impl From<StoredAttempt> for Attempt {
    fn from(stored: StoredAttempt) -> Self {
        let StoredAttempt { at, code, message, retryable } = stored;
        Self { at: Time::from_micros(at), error: JobError { code, message, retryable } }
    }
}

pub(crate) fn attempts_to_json(attempts: &[Attempt]) -> String {
    crate::codec::to_json(&attempts.iter().map(StoredAttempt::from).collect::<Vec<_>>())
}

pub(crate) fn attempts_from_json(text: &str) -> Result<Vec<Attempt>, StoreError> {
    Ok(from_json::<Vec<StoredAttempt>>(text)?.into_iter().map(Attempt::from).collect())
}

/// Reads the columns in the order in which every select here names them: id, event_id, source, op, trigger_id,
/// script_id, job, queue, kind, payload, depth, attempts, last_error, created_at, resolved_at, resolution, resolved_by,
/// note, replayed_as, work.
fn read(row: &Row) -> Result<DeadLetter, StoreError> {
    let resolution = row.opt_text(15)?.as_deref().and_then(Resolution::parse);
    let resolved = match (row.opt_time(14)?, resolution) {
        (Some(at), Some(resolution)) => Some(Resolved {
            resolution,
            at,
            by: row.opt_text(16)?.unwrap_or_default(),
            note: row.opt_text(17)?,
            replayed_as: row.opt_uuid(18)?,
        }),
        _ => None,
    };
    Ok(DeadLetter {
        id: DeadLetterId::new(row.uuid(0)?),
        event: EventId::new(row.uuid(1)?),
        source: row.text(2)?,
        op: row.text(3)?,
        trigger: row.opt_uuid(4)?.map(TriggerId::new),
        script: row.opt_uuid(5)?,
        job: row.opt_uuid(6)?.map(JobId::new),
        queue: row.opt_text(7)?,
        kind: row.opt_text(8)?,
        payload: row.text(9)?,
        depth: row.int(10)? as i32,
        attempts: attempts_from_json(&row.text(11)?)?,
        last_error: error_from_json(&row.text(12)?)?,
        created_at: row.time(13)?,
        resolved,
        work: row.opt_text(19)?,
    })
}
