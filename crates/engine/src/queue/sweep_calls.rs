//! Stores results whose caller disconnected, and cancels jobs of calls that no caller waits for.

use std::time::Duration;

use store::{Store, StoreError};

use crate::task::{Task, TaskOutcome};

pub(crate) struct SweepCalls {
    pub(crate) retention_s: i64,
}

impl Task for SweepCalls {
    const NAME: &'static str = "sweep_calls";
    const EVERY: Duration = Duration::from_secs(1);

    async fn run(&self, store: &Store) -> Result<TaskOutcome, StoreError> {
        let swept = store.sweep_calls(self.retention_s).await?;
        metrics::counter!("windlass_calls_abandoned_total").increment(swept.stored as u64);
        if swept == Default::default() {
            return Ok(TaskOutcome::nothing());
        }
        let work =
            format!("{} results stored, {} jobs canceled, {} pruned", swept.stored, swept.canceled, swept.pruned);
        Ok(TaskOutcome::work(work))
    }
}
