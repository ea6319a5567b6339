//! Commands for runs.

pub(crate) mod run;
pub(crate) mod tree;
