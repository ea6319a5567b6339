//! Subjects and processes.

pub(crate) mod subjects;
