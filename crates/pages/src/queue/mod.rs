//! Pages for jobs, queues and workers.

pub mod job;
pub mod jobs;
pub mod queues;
pub mod workers;
