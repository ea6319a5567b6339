//! Signals, streams, ETA, failures and signatures.

pub(crate) mod failures;
pub(crate) mod job_signals;
pub(crate) mod streams;
