//! Ends the claims of dead workers and of attempts past their time-out (X4), within a second of their time.

use std::time::Duration;

use store::{Store, StoreError};

use crate::task::{Done, Task};

pub(crate) struct SweepLeases;

impl Task for SweepLeases {
    const NAME: &'static str = "sweep_leases";
    const EVERY: Duration = Duration::from_millis(500);

    async fn run(&self, store: &Store) -> Result<Done, StoreError> {
        let swept = store.sweep().await?;
        metrics::counter!("windlass_claims_expired_total").increment(swept.jobs as u64);
        metrics::counter!("windlass_attempts_timed_out_total").increment(swept.timed_out as u64);
        if swept == Default::default() {
            return Ok(Done::nothing());
        }
        let many = |count: usize, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
        Ok(Done::work(format!(
            "{} dead, {} expired, {} timed out, {} quarantined",
            many(swept.workers, "worker"),
            many(swept.jobs, "claim"),
            many(swept.timed_out, "attempt"),
            many(swept.quarantined, "row"),
        )))
    }
}
