//! Validation of signals, signatures and time-to-first-signal events.

pub(crate) mod signal;
pub(crate) mod signature;
pub(crate) mod ttfs;
