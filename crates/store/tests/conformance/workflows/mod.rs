//! Workflows: runs, the dependencies of their nodes, and the journal of durable steps.

mod compensate;
mod fork;
pub(crate) mod journal;
pub(crate) mod runs;
mod sql_step;
mod waits;
