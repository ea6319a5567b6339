//! Writes the heartbeat of this node every second, so that downtime of the service can be distinguished from a silent worker.

use std::time::Duration;

use domain::limits::SERVICE_HEARTBEAT_MS;
use store::{Store, StoreError};

use crate::task::{Task, TaskOutcome};

pub(crate) struct Heartbeat;

impl Task for Heartbeat {
    const NAME: &'static str = "beat";
    const EVERY: Duration = Duration::from_millis(SERVICE_HEARTBEAT_MS as u64);

    async fn run(&self, store: &Store) -> Result<TaskOutcome, StoreError> {
        repair_clock_step(store).await?;
        Ok(match store.beat().await? {
            true => TaskOutcome::work("service returned; every lease gets one more term".into()),
            false => TaskOutcome::nothing(),
        })
    }
}

/// Runs before each heartbeat, which would hide that the clock was set back.
pub(crate) async fn repair_clock_step(store: &Store) -> Result<(), StoreError> {
    if let Some(back_ms) = store.repair_clock_step().await? {
        tracing::error!(
            back_ms,
            "the clock was ahead and has been set back; leases, delays and schedules were shifted to the current time"
        );
        metrics::counter!("windlass_clock_steps_total").increment(1);
    }
    Ok(())
}
