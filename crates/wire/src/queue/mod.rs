//! Durable queue: jobs, queues, workers, claims, artifacts and calls.

pub mod artifact;
pub mod call;
pub mod job;
pub mod queues;
pub mod worker;
