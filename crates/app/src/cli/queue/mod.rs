//! Commands for jobs, queues and workers, and the program worker.

pub(crate) mod job;
pub(crate) mod queues;
pub(crate) mod work;
pub(crate) mod worker;
