//! Compares the kept figures with the jobs themselves, now and then, and says when they differ.

use std::time::Duration;

use store::{Store, StoreError};

use crate::task::{Done, Task};

pub(crate) struct CheckCounters;

impl Task for CheckCounters {
    const NAME: &'static str = "check_counters";
    const EVERY: Duration = Duration::from_secs(600);

    async fn run(&self, store: &Store) -> Result<Done, StoreError> {
        let faults = store.check_counters().await?;
        metrics::gauge!("windlass_figure_faults").set(faults.len() as f64);
        for fault in &faults {
            tracing::error!(queue = %fault.queue, kept = ?fault.kept, counted = ?fault.counted, "a counter is wrong");
        }
        Ok(match faults.len() {
            0 => Done::work("every kept figure is right".into()),
            n => Done::work(format!("{n} queues have a wrong figure")),
        })
    }
}
