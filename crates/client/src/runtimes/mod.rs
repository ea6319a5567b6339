//! Runtimes and pools.

pub(crate) mod declarations;
pub(crate) mod pools;
