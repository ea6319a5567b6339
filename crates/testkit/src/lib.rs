//! For tests only: both databases, a clock that tests move, builders, a receiver of webhooks, and the reference model.

mod build;
mod database;
pub mod model;
pub mod receiver;

pub use build::{job, label, name};
pub use database::{Database, Served, on_both, on_postgres, on_sqlite};
