//! First signals: what is happening to a job. A signal is derived from the job's row, from what its worker reported,
//! and from the state of its queue.

pub mod calibration;
pub mod duration_statistics;
pub(crate) mod estimator;
pub mod failures;
pub mod list;
pub mod newest;
pub mod queue_snapshot;
pub mod read;
pub mod refine;
pub mod signatures;
pub mod sources;
pub mod ttfs;
pub mod versions;
