//! The HTTP contract: shapes, refusals and promises, on both databases through the whole router.

mod api;
mod artifacts;
mod bad_input;
mod frame;
mod jobs;
mod queues;
mod workers;
