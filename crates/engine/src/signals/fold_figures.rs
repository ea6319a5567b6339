//! Folds the durations of jobs that ended on this node into the duration statistics.

use std::time::Duration;

use store::{Store, StoreError};

use crate::task::{Task, TaskOutcome};

pub(crate) struct FoldFigures;

impl Task for FoldFigures {
    const NAME: &'static str = "fold_figures";
    const EVERY: Duration = Duration::from_secs(1);

    async fn run(&self, store: &Store) -> Result<TaskOutcome, StoreError> {
        Ok(match store.fold_duration_samples().await? {
            0 => TaskOutcome::nothing(),
            jobs => TaskOutcome::work(format!("{jobs} ended jobs sampled")),
        })
    }
}
