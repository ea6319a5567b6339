//! Leased work on subjects: selectors, processes and backoffs.

pub mod backoff;
pub mod process;
pub mod selector;
