//! Subjects, processes, backoffs and the timeline.

pub(crate) mod subjects;
