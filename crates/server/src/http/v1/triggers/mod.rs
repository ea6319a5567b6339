//! Routes for triggers, events, key-value collections, dead letters and deliveries.

pub(crate) mod dead_letters;
pub(crate) mod declarations;
pub(crate) mod deliveries;
pub(crate) mod events;
pub(crate) mod kv;
