//! Keeps the answers of calls whose caller is gone, and calls off what nobody waits for any more (Q5).

use std::time::Duration;

use store::{Store, StoreError};

use crate::task::{Done, Task};

pub(crate) struct SweepCalls {
    pub(crate) retention_s: i64,
}

impl Task for SweepCalls {
    const NAME: &'static str = "sweep_calls";
    const EVERY: Duration = Duration::from_secs(1);

    async fn run(&self, store: &Store) -> Result<Done, StoreError> {
        let swept = store.sweep_calls(self.retention_s).await?;
        metrics::counter!("windlass_calls_abandoned_total").increment(swept.kept as u64);
        if swept == Default::default() {
            return Ok(Done::nothing());
        }
        let work = format!("{} answers kept, {} jobs called off, {} pruned", swept.kept, swept.canceled, swept.pruned);
        Ok(Done::work(work))
    }
}
