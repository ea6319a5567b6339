//! Fires due schedule slots. All nodes run this task; each slot fires at most once.

use std::time::Duration;

use store::{Store, StoreError};

use crate::task::{Task, TaskOutcome};

pub(crate) struct FireSchedules;

impl Task for FireSchedules {
    const NAME: &'static str = "fire_schedules";
    const EVERY: Duration = Duration::from_millis(500);

    async fn run(&self, store: &Store) -> Result<TaskOutcome, StoreError> {
        let fired = store.fire_schedules().await?;
        metrics::counter!("windlass_schedule_slots_total", "outcome" => "fired").increment(fired.slots as u64);
        metrics::counter!("windlass_schedule_slots_total", "outcome" => "skipped").increment(fired.skipped as u64);
        let next_in = fired.next_in_ms.map(|ms| Duration::from_millis(ms as u64));
        let work = (fired.slots + fired.skipped > 0)
            .then(|| format!("{} slots fired, {} missed slots skipped", fired.slots, fired.skipped));
        Ok(TaskOutcome { work, next_in })
    }
}
