//! Triggers, events, schedules, key-value collections, the outbox, dead letters and deliveries.

pub mod dead_letter;
pub mod delivery;
pub mod event;
pub mod trigger;
