//! Tests of triggers, events, schedules, key-value collections, the outbox, dead letters and deliveries.

pub(crate) mod dead_letters;
pub(crate) mod declarations;
pub(crate) mod deliveries;
pub(crate) mod dispatch;
mod fan_out;
pub(crate) mod hooks_and_mail;
pub(crate) mod queue_triggers;
pub(crate) mod schedules;
