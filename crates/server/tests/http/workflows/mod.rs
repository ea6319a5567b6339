//! The routes of workflows.

mod claim_access;
mod journal;
mod runs;
mod waits;
