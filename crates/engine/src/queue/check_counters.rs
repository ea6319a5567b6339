//! Compares the maintained counters with the jobs about once an hour, and reports differences.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use store::db::clock::random_unit;
use store::{Store, StoreError};

use crate::task::{Task, TaskOutcome};

#[derive(Default)]
pub(crate) struct CheckCounters {
    has_run: AtomicBool,
}

impl Task for CheckCounters {
    const NAME: &'static str = "check_counters";
    const EVERY: Duration = Duration::from_secs(3_600);

    async fn run(&self, store: &Store) -> Result<TaskOutcome, StoreError> {
        // The check reads all live jobs. It must not run right after a start, nor on all nodes at the same time.
        let next_in = Some(Self::EVERY.mul_f64(0.5 + 0.5 * random_unit()));
        if !self.has_run.swap(true, Ordering::Relaxed) {
            return Ok(TaskOutcome { work: None, next_in });
        }
        let Some(faults) = store.try_check_counters().await? else { return Ok(TaskOutcome { work: None, next_in }) };
        metrics::gauge!("windlass_figure_faults").set(faults.len() as f64);
        for fault in &faults {
            tracing::error!(queue = %fault.queue, stored = ?fault.stored, counted = ?fault.counted, "a counter is wrong");
        }
        let work = match faults.len() {
            0 => "all counters are correct".into(),
            n => format!("{n} queues have a wrong counter"),
        };
        Ok(TaskOutcome { work: Some(work), next_in })
    }
}
