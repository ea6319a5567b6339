//! Folds the counters that every commit appended.

use std::time::Duration;

use store::{Store, StoreError};

use crate::task::{Done, Task};

pub(crate) struct FoldCounters;

impl Task for FoldCounters {
    const NAME: &'static str = "fold_counters";
    const EVERY: Duration = Duration::from_secs(1);

    async fn run(&self, store: &Store) -> Result<Done, StoreError> {
        Ok(match store.fold_counters().await? {
            0 => Done::nothing(),
            rows => Done::work(format!("{rows} rows folded")),
        })
    }
}
