//! Triggers that are the worker of a queue's jobs (T1): each node registers a worker for each of them, hands what it claims
//! to the outbox and settles the job with what became of the run.
//!
//! The job's own retry policy and dead letter count; a run is one attempt of its job.

mod outcome;
mod worker;

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use store::triggers::work::QueueWorker;
use store::{Store, StoreError};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::task::{Done, Task};

pub(crate) struct WorkQueues {
    tracker: TaskTracker,
    stop: CancellationToken,
    running: Mutex<HashMap<domain::TriggerId, (QueueWorker, CancellationToken)>>,
}

impl WorkQueues {
    pub(crate) fn new(tracker: TaskTracker, stop: CancellationToken) -> Self {
        Self { tracker, stop, running: Mutex::default() }
    }
}

impl Task for WorkQueues {
    const NAME: &'static str = "work_queues";
    const EVERY: Duration = Duration::from_secs(1);

    async fn run(&self, store: &Store) -> Result<Done, StoreError> {
        if self.stop.is_cancelled() {
            return Ok(Done::nothing());
        }
        let wanted = store.queue_workers().await?;
        let mut running = self.running.lock().expect("nobody panics with the map in hand");
        running.retain(|_, (worker, stop)| {
            let stays = wanted.contains(worker);
            if !stays {
                stop.cancel();
            }
            stays
        });
        let mut begun = 0;
        for worker in wanted {
            if running.contains_key(&worker.trigger) {
                continue;
            }
            let stop = self.stop.child_token();
            let run = worker::Run::new(store.clone(), worker.clone(), self.tracker.clone(), stop.clone());
            self.tracker.spawn(run.until_stopped());
            running.insert(worker.trigger, (worker, stop));
            begun += 1;
        }
        Ok(if begun > 0 { Done::work(format!("{begun} triggers begin to work queues")) } else { Done::nothing() })
    }
}
