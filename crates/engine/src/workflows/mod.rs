//! Background tasks of the workflows group.

pub(crate) mod resolve_waits;
pub(crate) mod stop_runs;
