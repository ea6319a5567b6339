//! Groups what failed, learns signatures from it, and sees what works again (S7).

use std::time::Duration;

use domain::limits::FAILURES_AT_ONCE;
use store::{Store, StoreError};

use crate::task::{Done, Task};

pub(crate) struct LearnFailures;

impl Task for LearnFailures {
    const NAME: &'static str = "learn_failures";
    const EVERY: Duration = Duration::from_secs(1);

    async fn run(&self, store: &Store) -> Result<Done, StoreError> {
        let failures = store.learn_failures().await?;
        let repairs = store.learn_repairs().await?;
        if failures == 0 && repairs == 0 {
            return Ok(Done::nothing());
        }
        let again = failures as usize >= FAILURES_AT_ONCE;
        let work = Some(format!("{failures} failures grouped, {repairs} repairs seen"));
        Ok(Done { work, again_in: again.then_some(Duration::from_millis(10)) })
    }
}
