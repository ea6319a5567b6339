//! A seeded world in virtual time that measures the estimates: jobs arrive, workers claim them by the claim rules, and
//! every answer is compared with the real end. Nothing here reads a clock, so a run takes a second and is repeatable.
//! Callers: the tests of this crate and `windlass bench --only eta`.
//!
//! The estimator sees what a server would see: the waiting and the running jobs, the loaded models, and the ended jobs.
//! An oracle answers the same questions with the true distributions, and the widths of both are compared.

mod measure;
mod world;

#[cfg(test)]
mod tests;

pub use measure::{Bars, Measured, Scenario, scenarios};
pub use world::{LogNormal, Shift, WorkKind, Workload};
