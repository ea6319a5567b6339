//! Validation of runtimes.

pub(crate) mod runtime;
