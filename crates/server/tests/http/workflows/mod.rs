//! The routes of workflows.

mod journal;
mod runs;
mod waits;
