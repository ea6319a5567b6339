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
        mend_clock(store).await?;
        Ok(match store.beat().await? {
            true => Done::work("service returned; every lease gets one more term".into()),
            false => Done::nothing(),
        })
    }
}

/// Before the beat: that would hide that the clock has come back.
pub(crate) async fn mend_clock(store: &Store) -> Result<(), StoreError> {
    if let Some(back_ms) = store.mend_clock_step().await? {
        tracing::error!(
            back_ms,
            "the clock was ahead and has come back; leases, waits and schedules count from now on"
        );
        metrics::counter!("windlass_clock_steps_total").increment(1);
    }
    Ok(())
}
