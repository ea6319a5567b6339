//! Commands for nodes, runtimes and pools, and the agent.

pub(crate) mod agent;
pub(crate) mod node;
pub(crate) mod pool;
pub(crate) mod runtime;
