//! Compares the kept figures with the jobs themselves, now and then, and says when they differ.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use store::clock::dice;
use store::{Store, StoreError};

use crate::task::{Done, Task};

#[derive(Default)]
pub(crate) struct CheckCounters {
    begun: AtomicBool,
}

impl Task for CheckCounters {
    const NAME: &'static str = "check_counters";
    const EVERY: Duration = Duration::from_secs(3_600);

    async fn run(&self, store: &Store) -> Result<Done, StoreError> {
        // Every live job is read: not while a node has just begun, and not by all nodes in one minute.
        let again_in = Some(Self::EVERY.mul_f64(0.5 + 0.5 * dice()));
        if !self.begun.swap(true, Ordering::Relaxed) {
            return Ok(Done { work: None, again_in });
        }
        let Some(faults) = store.check_counters_alone().await? else { return Ok(Done { work: None, again_in }) };
        metrics::gauge!("windlass_figure_faults").set(faults.len() as f64);
        for fault in &faults {
            tracing::error!(queue = %fault.queue, kept = ?fault.kept, counted = ?fault.counted, "a counter is wrong");
        }
        let work = match faults.len() {
            0 => "every kept figure is right".into(),
            n => format!("{n} queues have a wrong figure"),
        };
        Ok(Done { work: Some(work), again_in })
    }
}
