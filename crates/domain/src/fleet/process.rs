//! The settings of a process: which subjects, which job, concurrency, frequency, exclusions and backoff.

use crate::fleet::selector::Selector;
use crate::limits::PROCESS_EVERY_DEFAULT_S;
use crate::name::Name;
use crate::queue::retry::RetryPolicy;

/// Error for a job that names a process but no subject.
pub const NEEDS_A_SUBJECT: &str = "requires a subject: set `subject` or omit `process`";

#[derive(Clone, Debug, PartialEq)]
pub struct ProcessSettings {
    pub selector: Selector,
    pub queue: Name,
    pub kind: Name,
    /// JSON. `None`: the payload is the subject with its facts.
    pub payload: Option<Box<str>>,
    /// Maximum number of unfinished jobs of this process. `None`: unlimited.
    pub max_active: Option<u32>,
    /// Delay before a subject that is still eligible after its job is considered again.
    pub every_s: Option<i64>,
    /// Processes that must not run on a subject at the same time as this one. Applies in both directions.
    pub excludes: Vec<Name>,
    /// The backoff policy after a failure. `None`: the retry policy of the queue.
    pub backoff: Option<RetryPolicy>,
}

impl ProcessSettings {
    pub fn every_s(&self) -> i64 {
        self.every_s.unwrap_or(PROCESS_EVERY_DEFAULT_S)
    }
}
