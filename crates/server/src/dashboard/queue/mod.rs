//! Pages for jobs, kinds, queues and workers.

pub(crate) mod activity;
pub(crate) mod job;
pub(crate) mod jobs;
pub(crate) mod kind;
pub(crate) mod queue;
pub(crate) mod queues;
pub(crate) mod worker;
pub(crate) mod workers;
