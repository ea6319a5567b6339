//! Routes for signals, failures, signatures and time to first signal.

pub(crate) mod failures;
pub(crate) mod job_signals;
pub(crate) mod signatures;
pub(crate) mod streams;
pub(crate) mod ttfs;
