//! The routes of workflows.

mod journal;
