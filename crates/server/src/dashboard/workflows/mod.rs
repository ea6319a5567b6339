//! Pages for runs, and the journal of a job.

pub(crate) mod journal;
pub(crate) mod run;
pub(crate) mod runs;
