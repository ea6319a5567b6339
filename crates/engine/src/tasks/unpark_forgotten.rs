//! Lets parked jobs look again whose scope has room and that nobody let go: who was woken for the place had no use for it.

use std::time::{Duration, Instant};

use store::{Store, StoreError};

use crate::task::{Done, Task};

pub(crate) struct UnparkForgotten;

const PAUSE: Duration = Duration::from_millis(500);
/// Every scope that is waited for is looked at. However many there are, the pause is so many times as long as the look.
const SHARE: u32 = 20;

impl Task for UnparkForgotten {
    const NAME: &'static str = "unpark_forgotten";
    const EVERY: Duration = Duration::from_secs(10);

    async fn run(&self, store: &Store) -> Result<Done, StoreError> {
        let began = Instant::now();
        let unparked = store.unpark_forgotten().await?;
        let again_in = Some(pause_after(began.elapsed()));
        let work = (unparked > 0).then(|| format!("{unparked} parked jobs look again"));
        Ok(Done { work, again_in })
    }
}

fn pause_after(took: Duration) -> Duration {
    PAUSE.max(took * SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_takes_long_is_taken_seldom() {
        assert_eq!(pause_after(Duration::from_millis(2)), PAUSE);
        assert_eq!(pause_after(Duration::from_millis(200)), Duration::from_secs(4));
    }
}
