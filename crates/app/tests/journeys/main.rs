//! Whole journeys with the real program, on real SQLite files and a real PostgreSQL server.
//!
//! Each test's name begins with the requirement that it proves. Nothing here looks into the program: what is asserted is
//! what a user, a producer or a worker sees, and what `windlass verify` says of the database afterwards.

mod support;

mod backup;
mod benchmark;
mod calls;
mod clock;
mod command_line;
mod commits;
mod crash;
mod database_tls;
mod deliveries;
mod embedded;
mod hosts;
mod lease;
mod nodes;
mod outage;
mod runtimes;
mod secrets;
mod serve;
mod signals;
mod subjects;
mod tls;
mod tokens;
mod torture;
mod traces;
mod triggers;
mod work;
