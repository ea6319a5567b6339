//! Commands for triggers, topics, key-value collections, deliveries and dead letters.

pub(crate) mod dead_letter;
pub(crate) mod delivery;
pub(crate) mod kv;
pub(crate) mod topic;
pub(crate) mod trigger;
