//! Workflows: the journal of durable steps.

pub mod journal;
