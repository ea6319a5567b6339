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
        Ok(match store.collect_garbage(&self.blobs).await? {
            0 => Done::nothing(),
            blobs => {
                let again_in = (blobs == MAINTENANCE_ROWS).then_some(Duration::ZERO);
                Done { work: Some(format!("{blobs} blobs deleted")), again_in }
            }
        })
    }
}
