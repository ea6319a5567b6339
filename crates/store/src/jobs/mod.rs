//! Operations on jobs, one per file.

pub mod cancel;
pub mod claim;
pub(crate) mod end;
pub mod enqueue;
pub mod get;
pub(crate) mod held_back;
pub mod history;
pub(crate) mod holds;
pub mod list;
pub mod prune;
pub mod retry;
pub(crate) mod revocations;
pub mod settle;
mod stray_facts;
pub(crate) mod transition;
pub mod why;
