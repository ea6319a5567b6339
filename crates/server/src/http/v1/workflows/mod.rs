//! Routes for the journal of a job.

pub(crate) mod journal;
