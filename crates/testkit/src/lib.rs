//! For tests only: both databases, a clock that tests move, builders, and the reference model.

mod build;
mod database;
pub mod model;

pub use build::{job, label, name};
pub use database::{Database, Served, on_both, on_postgres, on_sqlite};
