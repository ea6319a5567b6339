//! What the engine's tasks ask of the store, one bounded step at a time.

pub mod beat;
pub mod clock_step;
pub mod fill;
pub mod fill_pages;
pub mod fold_counters;
pub mod health;
pub mod news;
pub mod promote;
pub mod prunings;
pub mod size;
pub mod unpark;
