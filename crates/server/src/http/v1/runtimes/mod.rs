//! Routes for runtimes, pools and nodes.

pub(crate) mod declarations;
pub(crate) mod nodes;
pub(crate) mod pools;
