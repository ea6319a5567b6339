//! Tests of runtimes, pools and the OpenAI-compatible API.

pub(crate) mod batch_files;
pub(crate) mod logs;
pub(crate) mod lost_nodes;
pub(crate) mod operations;
pub(crate) mod placement;
pub(crate) mod pool_places;
pub(crate) mod reconcile;
