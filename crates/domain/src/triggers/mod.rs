//! Triggers, delivery circuits and dead letters.

pub mod circuit;
pub mod dead_letter;
pub mod trigger;
