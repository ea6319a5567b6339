//! Validation of subjects and processes.

pub(crate) mod subject;
