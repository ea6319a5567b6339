//! ETA of a job: a simulation of the line before it, corrected so that it holds as often as it says.
//!
//! - `arrivals`: how many jobs arrive
//! - `durations`: how long jobs of a kind run, load and wait, from their history
//! - `progress`: what a reported progress says about the remaining time
//! - `retries`: which share of the attempts is retried
//! - `turnaround`: the time between two jobs of a worker
//! - `line`: the Monte Carlo simulation of the line
//! - `calibration`: adaptive conformal correction, and the measured accuracy
//! - `statistics`: all of that for one kind of work and affinity
//! - `virtual_workload`: a seeded world in virtual time that measures the estimates, for tests and `windlass bench`

pub mod arrivals;
pub mod calibration;
pub mod durations;
pub mod line;
pub mod progress;
pub mod random;
pub mod retries;
pub mod statistics;
pub mod turnaround;
pub mod virtual_workload;
