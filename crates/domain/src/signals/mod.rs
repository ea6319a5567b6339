//! Signals, ETA, failure patterns, signatures and time to first signal.

pub mod eta;
pub mod failure;
pub mod signal;
pub mod signature;
pub mod sketch;
pub mod ttfs;
