//! For tests only: both databases, a Docker engine, a clock that tests move, builders, a receiver of webhooks, the reference
//! model, the checker of histories and a simulation that both serve.

mod build;
mod database;
pub mod docker;
pub mod history;
pub mod model;
pub mod receiver;
pub mod simulation;

pub use build::{job, label, name};
pub use database::{Database, Served, on_both, on_postgres, on_sqlite};
