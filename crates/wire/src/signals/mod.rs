//! First signals: signals, ETA, failures, signatures and time to first signal (TTFS).

pub mod failure;
pub mod signal;
pub mod ttfs;
