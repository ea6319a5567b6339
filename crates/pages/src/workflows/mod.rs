//! Pages for runs, and the journal of a job.

pub mod graph;
pub mod journal;
pub mod run;
pub mod runs;
