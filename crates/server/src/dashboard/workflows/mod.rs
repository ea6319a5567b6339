//! Pages for runs, and the journal of a job.

mod eta;
pub(crate) mod journal;
pub(crate) mod run;
pub(crate) mod runs;
