//! The job queue: state machine, claim order, leases, retries, settings.

pub mod call;
pub mod claim;
pub mod job;
pub mod job_origin;
pub mod lease;
pub mod queue_position;
pub mod retry;
pub mod settings;
pub mod trace_context;
pub mod why;
