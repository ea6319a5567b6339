//! Polls on behalf of all waiters of this node: for ready jobs, ended jobs and messages to workers. On PostgreSQL
//! another node or a user's own transaction may cause them.

use std::time::Duration;

use store::{Store, StoreError};

use crate::task::{Task, TaskOutcome};

pub(crate) struct PollReadyQueues;

impl Task for PollReadyQueues {
    const NAME: &'static str = "wake_waiting";
    const EVERY: Duration = Duration::from_millis(100);

    async fn run(&self, store: &Store) -> Result<TaskOutcome, StoreError> {
        store.poll_ready_queues().await?;
        Ok(TaskOutcome::nothing())
    }
}
