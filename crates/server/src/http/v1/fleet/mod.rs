//! Routes for subjects and processes.

pub(crate) mod processes;
pub(crate) mod subjects;
