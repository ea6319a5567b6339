//! Folds the counter deltas that commits append into the counters.

use std::time::Duration;

use store::{Store, StoreError};

use crate::task::{Task, TaskOutcome};

pub(crate) struct FoldCounters;

impl Task for FoldCounters {
    const NAME: &'static str = "fold_counters";
    const EVERY: Duration = Duration::from_secs(1);

    async fn run(&self, store: &Store) -> Result<TaskOutcome, StoreError> {
        Ok(match store.fold_counters().await? {
            0 => TaskOutcome::nothing(),
            rows => TaskOutcome::work(format!("{rows} rows folded")),
        })
    }
}
