//! Pages for jobs, kinds, queues and workers.

pub(crate) mod activity;
pub(crate) mod job;
pub(crate) mod jobs;
pub(crate) mod kind;
#[expect(clippy::module_inception, reason = "the page of one queue, beside those of one job and one worker")]
pub(crate) mod queue;
pub(crate) mod queues;
pub(crate) mod worker;
pub(crate) mod workers;
