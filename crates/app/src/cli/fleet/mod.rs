//! Commands for subjects and processes.

pub(crate) mod process;
pub(crate) mod subject;
