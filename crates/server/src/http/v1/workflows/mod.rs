//! Routes of the workflows group.

pub(crate) mod journal;
pub(crate) mod runs;
