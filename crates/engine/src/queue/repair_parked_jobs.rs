//! Releases parked jobs that were missed: the job that was released for a free slot did not use it.

use std::time::{Duration, Instant};

use store::{Store, StoreError};

use crate::task::{Task, TaskOutcome};

pub(crate) struct RepairParkedJobs;

const PAUSE: Duration = Duration::from_millis(500);
/// The scan reads every scope with parked jobs. The pause is this many times as long as the scan.
const SHARE: u32 = 20;

impl Task for RepairParkedJobs {
    const NAME: &'static str = "unpark_forgotten";
    const EVERY: Duration = Duration::from_secs(10);

    async fn run(&self, store: &Store) -> Result<TaskOutcome, StoreError> {
        let began = Instant::now();
        let unparked = store.repair_parked_jobs().await?;
        let next_in = Some(pause_after(began.elapsed()));
        let work = (unparked > 0).then(|| format!("{unparked} parked jobs released"));
        Ok(TaskOutcome { work, next_in })
    }
}

fn pause_after(took: Duration) -> Duration {
    PAUSE.max(took * SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_scan_for_parked_jobs_runs_less_often() {
        assert_eq!(pause_after(Duration::from_millis(2)), PAUSE);
        assert_eq!(pause_after(Duration::from_millis(200)), Duration::from_secs(4));
    }
}
