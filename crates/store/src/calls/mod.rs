//! Synchronous calls (Q5): a job whose maker waits for its answer. It runs once, is never retried and never becomes a dead
//! letter; an answer that comes when nobody waits any more is kept as an abandoned execution.

pub mod list;
pub mod make;
pub mod sweep;
