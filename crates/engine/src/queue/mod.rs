//! Background tasks and long polls of the job queue.

pub(crate) mod check_counters;
pub(crate) mod collect_artifact_garbage;
pub(crate) mod fail_overdue_jobs;
pub(crate) mod fold_counters;
pub mod long_poll;
pub(crate) mod poll_ready_queues;
pub(crate) mod promote_due;
pub(crate) mod relay;
pub(crate) mod repair_parked_jobs;
pub(crate) mod sweep_calls;
pub(crate) mod sweep_leases;
