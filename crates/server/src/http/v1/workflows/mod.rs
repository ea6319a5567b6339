//! Routes of the workflows group.

pub(crate) mod journal;
pub(crate) mod run_signals;
pub(crate) mod runs;
