//! Validation of jobs, outcomes, queue settings and workers.

pub(crate) mod job;
pub(crate) mod outcome;
pub(crate) mod settings;
pub(crate) mod worker;
