//! Compares the time to first signal with its targets and raises alerts.

use std::time::Duration;

use store::{Store, StoreError};

use crate::task::{Task, TaskOutcome};

pub(crate) struct WatchTtfs;

impl Task for WatchTtfs {
    const NAME: &'static str = "watch_ttfs";
    const EVERY: Duration = Duration::from_secs(15);

    async fn run(&self, store: &Store) -> Result<TaskOutcome, StoreError> {
        let watched = store.watch_ttfs().await?;
        for (alerts, holds) in [(&watched.began, 1.0), (&watched.ended, 0.0)] {
            for alert in alerts {
                let (name, surface) = (alert.alert.clone(), alert.surface.clone());
                metrics::gauge!("windlass_ttfs_alert", "alert" => name, "surface" => surface).set(holds);
                tracing::warn!(
                    alert = alert.alert,
                    surface = alert.surface,
                    detail = alert.detail,
                    holds,
                    "ttfs alert"
                );
            }
        }
        Ok(match (watched.began.len(), watched.ended.len()) {
            (0, 0) => TaskOutcome::nothing(),
            (began, ended) => TaskOutcome::work(format!("{began} alerts began, {ended} ended")),
        })
    }
}
