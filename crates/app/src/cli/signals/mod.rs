//! Commands for failures, signatures and time to first signal (TTFS).

pub(crate) mod failures;
pub(crate) mod signature;
pub(crate) mod ttfs;
