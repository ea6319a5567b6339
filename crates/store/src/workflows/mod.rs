//! Operations of the workflows group: the journal of durable steps.

pub mod journal;
