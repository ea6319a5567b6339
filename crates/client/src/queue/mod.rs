//! Jobs, queues, workers, artifacts and calls.

pub(crate) mod artifacts;
pub(crate) mod calls;
pub(crate) mod job;
pub(crate) mod jobs;
pub(crate) mod queues;
pub(crate) mod transactional;
pub(crate) mod worker;
pub(crate) mod workers;
