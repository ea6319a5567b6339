//! Validation of triggers, webhooks and dead letters.

pub(crate) mod dead_letter;
pub(crate) mod trigger;
pub(crate) mod webhook;
