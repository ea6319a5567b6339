//! Pages for triggers, deliveries and dead letters.

pub mod dead_letters;
pub mod declarations;
pub mod deliveries;
