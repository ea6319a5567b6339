//! One suite for both databases: every promise of the store, by its effect.

mod support;

mod backoffs;
mod cancel;
mod claim;
mod dead_letters;
mod differential;
mod enqueue;
mod failures;
mod figures;
mod figures_eta;
mod lease;
mod limits;
mod list;
mod outage;
mod plans;
mod pooler;
mod prune;
mod queue_triggers;
mod retry;
mod schedules;
mod schema;
mod secrets;
mod settle;
mod signal;
mod sql_function;
mod statements;
mod subjects;
mod subjects_at_work;
mod tokens;
mod triggers;
mod ttfs;
mod twin;
mod url;
mod wall;
mod why;
