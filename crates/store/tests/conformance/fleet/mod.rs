//! Tests of subjects, processes, backoffs and the timeline.

pub(crate) mod backoffs;
pub(crate) mod subjects;
pub(crate) mod subjects_at_work;
