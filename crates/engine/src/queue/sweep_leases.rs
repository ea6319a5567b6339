//! Ends the claims of dead workers and the attempts past their timeout, within a second.

use std::time::Duration;

use store::{Store, StoreError};

use crate::task::{Task, TaskOutcome};

pub(crate) struct SweepLeases;

impl Task for SweepLeases {
    const NAME: &'static str = "sweep_leases";
    const EVERY: Duration = Duration::from_millis(500);

    async fn run(&self, store: &Store) -> Result<TaskOutcome, StoreError> {
        let swept = store.sweep().await?;
        metrics::counter!("windlass_claims_expired_total").increment(swept.jobs as u64);
        metrics::counter!("windlass_attempts_timed_out_total").increment(swept.timed_out as u64);
        if swept == Default::default() {
            return Ok(TaskOutcome::nothing());
        }
        let many = |count: usize, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
        Ok(TaskOutcome::work(format!(
            "{} dead, {} expired, {} timed out, {} quarantined",
            many(swept.workers, "worker"),
            many(swept.jobs, "claim"),
            many(swept.timed_out, "attempt"),
            many(swept.quarantined, "row"),
        )))
    }
}
