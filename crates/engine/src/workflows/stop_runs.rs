//! Cancels the remaining jobs of runs that are being stopped, after a failure or a cancel.

use std::time::Duration;

use store::db::notifier::Topic;
use store::{Store, StoreError};

use crate::task::{Task, TaskOutcome};

pub(crate) struct StopRuns;

impl Task for StopRuns {
    const NAME: &'static str = "stop_runs";
    const EVERY: Duration = Duration::from_secs(1);
    const WAKE: Option<Topic> = Some(Topic::StoppingRuns);

    async fn run(&self, store: &Store) -> Result<TaskOutcome, StoreError> {
        let runs = store.stop_runs().await?;
        let work = (runs > 0).then(|| format!("{runs} runs are being stopped"));
        Ok(TaskOutcome { work, next_in: None })
    }
}
