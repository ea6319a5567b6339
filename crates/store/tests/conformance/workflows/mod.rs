//! Workflows: the journal of durable steps.

mod fork;
mod journal;
mod sql_step;
