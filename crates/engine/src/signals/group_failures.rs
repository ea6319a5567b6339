//! Groups failures, learns signatures from the groups, and detects repairs.

use std::time::Duration;

use domain::limits::FAILURE_BATCH_ROWS;
use store::{Store, StoreError};

use crate::task::{Task, TaskOutcome};

pub(crate) struct GroupFailures;

impl Task for GroupFailures {
    const NAME: &'static str = "learn_failures";
    const EVERY: Duration = Duration::from_secs(1);

    async fn run(&self, store: &Store) -> Result<TaskOutcome, StoreError> {
        let failures = store.learn_failures().await?;
        let repairs = store.learn_repairs().await?;
        if failures == 0 && repairs == 0 {
            return Ok(TaskOutcome::nothing());
        }
        let again = failures as usize >= FAILURE_BATCH_ROWS;
        let work = Some(format!("{failures} failures grouped, {repairs} repairs detected"));
        Ok(TaskOutcome { work, next_in: again.then_some(Duration::from_millis(10)) })
    }
}
