//! Deletes blobs that no artifact refers to, from the blob store.

use std::time::Duration;

use domain::limits::MAINTENANCE_ROWS;
use store::queue::artifacts::Blobs;
use store::{Store, StoreError};

use crate::task::{Task, TaskOutcome};

pub(crate) struct CollectArtifactGarbage {
    pub(crate) blobs: Blobs,
}

impl Task for CollectArtifactGarbage {
    const NAME: &'static str = "collect_garbage";
    const EVERY: Duration = Duration::from_secs(60);

    async fn run(&self, store: &Store) -> Result<TaskOutcome, StoreError> {
        let deleted = store.collect_garbage(&self.blobs).await?;
        metrics::gauge!("windlass_blob_garbage").set(store.count_garbage().await? as f64);
        Ok(match deleted {
            0 => TaskOutcome::nothing(),
            blobs => {
                // Blobs that cannot be deleted must not delay the others.
                let next_in = (blobs > MAINTENANCE_ROWS / 2).then_some(Duration::ZERO);
                TaskOutcome { work: Some(format!("{blobs} blobs deleted")), next_in }
            }
        })
    }
}
