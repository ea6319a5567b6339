//! Tests of jobs, queues, workers, claims, artifacts and calls.

pub(crate) mod artifact_garbage;
pub(crate) mod cancel;
pub(crate) mod claim;
pub(crate) mod deadlines;
pub(crate) mod enqueue;
pub(crate) mod fast_path;
pub(crate) mod gather;
pub(crate) mod lease;
pub(crate) mod limits;
pub(crate) mod list;
pub(crate) mod prune;
pub(crate) mod ready_queue_poller;
pub(crate) mod recent_ends;
pub(crate) mod retry;
pub(crate) mod settle;
pub(crate) mod sql_function;
pub(crate) mod traces;
pub(crate) mod twin;
pub(crate) mod why;
