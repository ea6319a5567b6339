//! Operations of the workflows group: runs, the dependencies of their nodes, and the journal of durable steps.

pub mod claim_access;
pub mod journal;
pub mod runs;
