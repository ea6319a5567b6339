//! Views of the workflows group.

mod journal;
mod runs;

pub(crate) use journal::*;
pub(crate) use runs::*;
