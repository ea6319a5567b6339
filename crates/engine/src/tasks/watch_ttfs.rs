//! Watches the time to first signal against its targets (S5).

use std::time::Duration;

use store::{Store, StoreError};

use crate::task::{Done, Task};

pub(crate) struct WatchTtfs;

impl Task for WatchTtfs {
    const NAME: &'static str = "watch_ttfs";
    const EVERY: Duration = Duration::from_secs(15);

    async fn run(&self, store: &Store) -> Result<Done, StoreError> {
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
            (0, 0) => Done::nothing(),
            (began, ended) => Done::work(format!("{began} alerts began, {ended} ended")),
        })
    }
}
