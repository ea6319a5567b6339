//! Promotes scheduled jobs whose time has come to queued.

use std::time::Duration;

use domain::limits::MAINTENANCE_ROWS;
use store::db::notifier::Topic;
use store::{Store, StoreError};

use crate::task::{Task, TaskOutcome};

pub(crate) struct PromoteDue;

impl Task for PromoteDue {
    const NAME: &'static str = "promote_due";
    const EVERY: Duration = Duration::from_millis(500);
    const WAKE: Option<Topic> = Some(Topic::Due);

    async fn run(&self, store: &Store) -> Result<TaskOutcome, StoreError> {
        let promoted = store.promote_due().await?;
        let next_in = if promoted.jobs == MAINTENANCE_ROWS {
            Some(Duration::ZERO)
        } else {
            promoted.next_in_ms.map(|ms| Duration::from_millis(ms as u64))
        };
        let work = (promoted.jobs > 0).then(|| format!("{} jobs became due", promoted.jobs));
        Ok(TaskOutcome { work, next_in })
    }
}
