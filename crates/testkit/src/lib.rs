//! Test support: both databases, Docker, a movable clock, builders, a webhook receiver, the reference model, the
//! history checker, and a simulation that uses the last two.

mod build;
mod database;
pub mod docker;
pub mod eventually;
pub mod history;
pub mod model;
pub mod receiver;
pub mod simulation;

pub use build::{job, label, name};
pub use database::{Database, ServiceHeartbeat, on_both, on_postgres, on_sqlite};
