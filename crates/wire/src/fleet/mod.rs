//! Leased work on subjects: subjects, processes, backoffs and the timeline.

pub mod process;
pub mod subject;
