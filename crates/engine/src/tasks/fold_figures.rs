//! Keeps how long each kind of work takes, from the jobs that ended on this node (S9).

use std::time::Duration;

use store::{Store, StoreError};

use crate::task::{Done, Task};

pub(crate) struct FoldFigures;

impl Task for FoldFigures {
    const NAME: &'static str = "fold_figures";
    const EVERY: Duration = Duration::from_secs(1);

    async fn run(&self, store: &Store) -> Result<Done, StoreError> {
        Ok(match store.fold_figures().await? {
            0 => Done::nothing(),
            jobs => Done::work(format!("{jobs} ended jobs looked at")),
        })
    }
}
