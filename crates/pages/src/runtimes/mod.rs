//! Pages for runtimes and pools.

pub mod declarations;
pub mod pools;
