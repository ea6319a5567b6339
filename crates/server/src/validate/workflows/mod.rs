//! Validation of journal writes.

pub(crate) mod journal;
