//! Workflows of the Rust SDK on a real store, SQLite and PostgreSQL.

mod failures;
mod harness;
mod steps;
mod waits;
