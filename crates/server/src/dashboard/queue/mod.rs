//! Pages for jobs, queues and workers.

pub(crate) mod job;
pub(crate) mod jobs;
pub(crate) mod queues;
pub(crate) mod workers;
