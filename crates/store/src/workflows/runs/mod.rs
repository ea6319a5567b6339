//! Runs: groups of jobs with a common end, and the dependencies of their nodes.
//!
//! The row of a run is the lock of everything that its nodes share: the counts of the run, the unmet needs of its nodes
//! and the state of the jobs that wait for needs. Every transaction that ends a job of a run updates that row after all
//! other locks, once, however many jobs it ends. So the last of several concurrent ends sees all the others.

pub mod cancel;
pub(crate) mod end;
pub mod get;
pub mod inputs;
pub(crate) mod join;
pub(crate) mod needs;
pub mod prune;
pub mod retry;
pub mod start;
pub(crate) mod waits_for;

pub use get::{Run, RunFilter, RunNode};
pub use start::{NewNode, NewRun, NodesAdded, RunStarted};
