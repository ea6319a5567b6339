//! Workflows: runs, their nodes, and the journal of durable steps.

pub mod journal;
pub mod run;
