//! Container runtimes and pools.

pub mod pool;
pub mod runtime;
