//! Triggers, events, schedules, key-value collections, mail, dead letters and deliveries.

pub(crate) mod dead_letters;
pub(crate) mod deliveries;
pub(crate) mod events;
pub(crate) mod mail_triggers;
pub(crate) mod queue_triggers;
pub(crate) mod runs;
pub(crate) mod runtime_triggers;
pub(crate) mod scripts;
pub(crate) mod smtp;
pub(crate) mod trigger_declarations;
