//! The transactional outbox: runs of triggers to be started. Any node claims rows in batches under a lease and deletes each
//! row in the transaction that starts its run.

pub mod age;
pub mod claim;
pub mod operate;
pub mod script_effect;
pub mod settle;

use domain::{EventId, JobError, TenantId, TriggerId};
use uuid::Uuid;

use crate::triggers::Mode;
use crate::triggers::dead_letters::FailedAttempt;

/// A claimed outbox row: one run to start.
#[derive(Clone, Debug)]
pub struct OutboxRow {
    pub id: Uuid,
    pub tenant: TenantId,
    pub trigger: TriggerId,
    pub event: EventId,
    pub source: String,
    pub op: String,
    pub depth: i32,
    /// The event without its data, as JSON.
    pub head: String,
    /// The event's data, as JSON.
    pub data: String,
    /// The last retry wait without jitter, from which the next one is computed.
    pub wait_s: Option<u64>,
    /// Failed attempts so far.
    pub attempts: Vec<FailedAttempt>,
    /// The trigger's mode. The row does not store it: a claim returns `Async`, and the dispatcher sets it from the trigger.
    pub mode: Mode,
}

impl OutboxRow {
    /// Returns the default input of the run, used if the trigger has no mapping.
    pub fn envelope(&self) -> String {
        crate::triggers::events::envelope(&self.head, &self.data)
    }
}

/// Creates a retryable error of a run that failed before anything was started.
pub fn failure(code: &str, message: impl Into<String>) -> JobError {
    JobError { code: code.into(), message: message.into(), retryable: true }
}
