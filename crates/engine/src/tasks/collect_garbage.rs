//! Deletes blobs that no artifact names any more, from their folder or bucket.

use std::time::Duration;

use domain::limits::MAINTENANCE_ROWS;
use store::artifacts::Blobs;
use store::{Store, StoreError};

use crate::task::{Done, Task};

pub(crate) struct CollectGarbage {
    pub(crate) blobs: Blobs,
}

impl Task for CollectGarbage {
    const NAME: &'static str = "collect_garbage";
    const EVERY: Duration = Duration::from_secs(60);

    async fn run(&self, store: &Store) -> Result<Done, StoreError> {
        let deleted = store.collect_garbage(&self.blobs).await?;
        metrics::gauge!("windlass_blob_garbage").set(store.garbage_on_record().await? as f64);
        Ok(match deleted {
            0 => Done::nothing(),
            blobs => {
                // A few that cannot be deleted hold up no others.
                let again_in = (blobs > MAINTENANCE_ROWS / 2).then_some(Duration::ZERO);
                Done { work: Some(format!("{blobs} blobs deleted")), again_in }
            }
        })
    }
}
