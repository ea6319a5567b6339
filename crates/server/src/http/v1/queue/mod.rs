//! Routes for jobs, queues, workers, artifacts and calls.

pub(crate) mod artifacts;
pub(crate) mod attempt_spans;
pub(crate) mod calls;
pub(crate) mod jobs;
pub(crate) mod queues;
pub(crate) mod workers;
