//! Triggers, topics, key-value collections, deliveries and dead letters.

pub(crate) mod dead_letters;
pub(crate) mod declarations;
pub(crate) mod deliveries;
