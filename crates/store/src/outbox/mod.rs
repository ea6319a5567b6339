//! The outbox: what is to be started. Taken in batches by any node, closed in the transaction that starts it (T3, T4).

pub mod age;
pub mod deed;
pub mod operate;
pub mod settle;
pub mod take;

use domain::{EventId, JobError, TenantId, TriggerId};
use uuid::Uuid;

use crate::dead_letters::Attempt;
use crate::triggers::Mode;

/// One run to be started, as a dispatcher has it.
#[derive(Clone, Debug)]
pub struct Taken {
    pub id: Uuid,
    pub tenant: TenantId,
    pub trigger: TriggerId,
    pub event: EventId,
    pub source: String,
    pub op: String,
    pub depth: i32,
    /// JSON: the event without its data.
    pub head: String,
    /// JSON.
    pub data: String,
    pub wait_s: Option<u64>,
    /// Tries that failed.
    pub attempts: Vec<Attempt>,
    /// As its trigger says; whoever knows the trigger sets it.
    pub mode: Mode,
}

impl Taken {
    /// What the run gets unless its trigger maps it.
    pub fn envelope(&self) -> String {
        crate::events::envelope(&self.head, &self.data)
    }
}

/// A failure of a run before anything was started.
pub fn failure(code: &str, message: impl Into<String>) -> JobError {
    JobError { code: code.into(), message: message.into(), retryable: true }
}
