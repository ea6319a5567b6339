//! What a process declares (W1): which subjects, what job, how many at once, how often, what it excludes, its backoff.

use crate::limits::PROCESS_EVERY_S_DEFAULT;
use crate::name::Name;
use crate::retry::RetryPolicy;
use crate::selector::Selector;

/// What is said of a job that names a process and no subject to do it to.
pub const NEEDS_A_SUBJECT: &str = "needs a subject: say what the process is done to, or leave it out";

#[derive(Clone, Debug, PartialEq)]
pub struct ProcessSettings {
    pub selector: Selector,
    pub queue: Name,
    pub kind: Name,
    /// JSON. Without one a job carries its subject and the subject's facts.
    pub payload: Option<Box<str>>,
    /// Unfinished jobs of this process at once; any number, unless set.
    pub max_active: Option<u32>,
    /// How soon a subject that is still eligible after its job is looked at again.
    pub every_s: Option<i64>,
    /// Processes that may not run on a subject while this one does, and the other way round.
    pub excludes: Vec<Name>,
    /// After a failure; the queue's retry policy, unless set.
    pub backoff: Option<RetryPolicy>,
}

impl ProcessSettings {
    pub fn every_s(&self) -> i64 {
        self.every_s.unwrap_or(PROCESS_EVERY_S_DEFAULT)
    }
}
