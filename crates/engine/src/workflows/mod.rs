//! Background tasks of the workflows group.

pub(crate) mod stop_runs;
