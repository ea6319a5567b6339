//! Tests of signals, ETA, failures, signatures and time to first signal.

pub(crate) mod failures;
pub(crate) mod figures;
pub(crate) mod figures_eta;
pub(crate) mod learning;
pub(crate) mod signal;
pub(crate) mod ttfs;
