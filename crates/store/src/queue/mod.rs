//! Operations of the queue group: jobs, queues, workers, artifacts and calls. One file holds one operation.

pub mod artifacts;
pub(crate) mod blocked_reason;
pub mod calls;
pub mod cancel;
pub mod claim;
pub mod claim_gate;
pub mod counters;
pub mod enqueue;
mod facts_without_subject;
pub mod fold_counters;
pub mod get;
pub mod history;
pub(crate) mod holds;
pub(crate) mod lanes;
pub mod list;
pub mod promote;
pub mod prune;
pub mod queues;
pub mod ready_queue_poller;
pub mod recent_ends;
pub mod repair_parked_jobs;
pub mod retry;
pub(crate) mod revocations;
pub mod settle;
pub(crate) mod transition;
pub mod why;
pub mod workers;
