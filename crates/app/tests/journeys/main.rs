//! End-to-end tests with the real binary, on real SQLite files and a real PostgreSQL server.
//!
//! These tests use only what a user, a producer or a worker can see: the command line, the HTTP API, files and signals.
//! Most of them end with `windlass verify` on the database.

mod support;

mod backup;
mod benchmark;
mod calls;
mod clock;
mod command_line;
mod commits;
mod crash;
mod database_copy;
mod database_tls;
mod deliveries;
mod embedded;
mod file_modes;
mod hosts;
mod lease;
mod nodes;
mod outage;
mod runtimes;
mod rust_workflows;
mod secrets;
mod serve;
mod setup;
mod shell;
mod signals;
mod subjects;
mod tls;
mod tokens;
mod torture;
mod traces;
mod triggers;
mod work;
mod work_protocol;
