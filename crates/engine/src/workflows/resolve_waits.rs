//! Resolves sleeps and timeouts that are due, and steps whose children have ended, and wakes their jobs.

use std::time::Duration;

use domain::limits::MAINTENANCE_ROWS;
use store::db::notifier::Topic;
use store::{Store, StoreError};

use crate::task::{Task, TaskOutcome};

pub(crate) struct ResolveWaits;

impl Task for ResolveWaits {
    const NAME: &'static str = "resolve_waits";
    const EVERY: Duration = Duration::from_millis(500);
    const WAKE: Option<Topic> = Some(Topic::Due);

    async fn run(&self, store: &Store) -> Result<TaskOutcome, StoreError> {
        let resolved = store.resolve_waits().await?;
        let next_in = if resolved.entries >= MAINTENANCE_ROWS {
            Some(Duration::ZERO)
        } else {
            resolved.next_in_ms.map(|ms| Duration::from_millis(ms as u64))
        };
        let work = (resolved.entries > 0).then(|| format!("{} steps of workflows were resolved", resolved.entries));
        Ok(TaskOutcome { work, next_in })
    }
}
