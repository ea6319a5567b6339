//! Says every second that this node serves, so that an outage of ours is told apart from a worker's silence.

use std::time::Duration;

use domain::limits::SERVICE_BEAT_MS;
use store::{Store, StoreError};

use crate::task::{Done, Task};

pub(crate) struct Beat;

impl Task for Beat {
    const NAME: &'static str = "beat";
    const EVERY: Duration = Duration::from_millis(SERVICE_BEAT_MS as u64);

    async fn run(&self, store: &Store) -> Result<Done, StoreError> {
        Ok(match store.beat().await? {
            true => Done::work("service returned; every lease gets one more term".into()),
            false => Done::nothing(),
        })
    }
}
