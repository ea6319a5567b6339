//! Synchronous calls: a job whose caller waits for its result. It runs once, is never retried and never becomes a dead
//! letter. A result that arrives after the caller disconnected is stored as an abandoned execution.

pub mod list;
pub mod make;
pub mod sweep;
