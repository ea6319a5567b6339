//! Leased work on long-lived subjects: subjects, processes, backoffs and the timeline.

pub mod backoffs;
pub mod processes;
pub mod subjects;
pub mod timeline;
