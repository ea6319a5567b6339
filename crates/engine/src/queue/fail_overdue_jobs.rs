//! Fails jobs past their deadline, within a second.

use std::time::Duration;

use domain::limits::MAINTENANCE_ROWS;
use store::{Store, StoreError};

use crate::task::{Task, TaskOutcome};

pub(crate) struct FailOverdueJobs;

impl Task for FailOverdueJobs {
    const NAME: &'static str = "fail_overdue_jobs";
    const EVERY: Duration = Duration::from_secs(1);

    async fn run(&self, store: &Store) -> Result<TaskOutcome, StoreError> {
        let overdue = store.fail_overdue_jobs().await?;
        metrics::counter!("windlass_jobs_past_deadline_total").increment(overdue.failed as u64);
        let next_in = (overdue.deadlines >= MAINTENANCE_ROWS).then_some(Duration::ZERO);
        let work = (overdue.failed > 0 || overdue.unreadable > 0).then(|| {
            format!("{} jobs failed at their deadline, {} cannot be read", overdue.failed, overdue.unreadable)
        });
        Ok(TaskOutcome { work, next_in })
    }
}
