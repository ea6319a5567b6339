//! Looks for all who wait on this node whether what they wait for is there: a job, the end of one, a word for a worker. On
//! PostgreSQL any node, and anybody's own transaction, may bring it about.

use std::time::Duration;

use store::{Store, StoreError};

use crate::task::{Done, Task};

pub(crate) struct WakeWaiting;

impl Task for WakeWaiting {
    const NAME: &'static str = "wake_waiting";
    const EVERY: Duration = Duration::from_millis(100);

    async fn run(&self, store: &Store) -> Result<Done, StoreError> {
        store.wake_waiting().await?;
        Ok(Done::nothing())
    }
}
