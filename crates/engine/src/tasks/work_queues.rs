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
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::task::{Done, Task};

pub(crate) struct WorkQueues {
    tracker: TaskTracker,
    stop: CancellationToken,
    running: Mutex<HashMap<domain::TriggerId, Running>>,
}

struct Running {
    worker: QueueWorker,
    stop: CancellationToken,
    run: JoinHandle<()>,
}

impl Running {
    /// One that ended without having been told to has panicked, and is begun anew.
    fn goes_on(&self) -> bool {
        let panicked = self.run.is_finished() && !self.stop.is_cancelled();
        if panicked {
            metrics::counter!("windlass_task_errors_total", "task" => WorkQueues::NAME).increment(1);
            tracing::error!(trigger = %self.worker.trigger, "a trigger that works a queue panicked and begins anew");
        }
        !panicked
    }
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
        running.retain(|_, of| {
            let stays = wanted.contains(&of.worker) && of.goes_on();
            if !stays {
                of.stop.cancel();
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
            let run = self.tracker.spawn(run.until_stopped());
            running.insert(worker.trigger, Running { worker, stop, run });
            begun += 1;
        }
        Ok(if begun > 0 { Done::work(format!("{begun} triggers begin to work queues")) } else { Done::nothing() })
    }
}

#[cfg(test)]
mod tests {
    use domain::trigger::Source;
    use domain::{RetryPolicy, TenantId};
    use store::triggers::put::Put;
    use store::triggers::{Mode, NewTrigger};
    use testkit::Database;

    use super::*;

    #[tokio::test]
    async fn a_trigger_that_works_a_queue_begins_anew_when_it_was_broken_off() {
        let db = Database::sqlite().await;
        let trigger = NewTrigger {
            name: "works".into(),
            source: Source::Queue,
            filter: r#"{"queue": "q"}"#.into(),
            target: r#"{"job": {"queue": "made", "kind": "k"}}"#.into(),
            mode: Mode::Async,
            retry: RetryPolicy::NONE,
            max_attempts: 2,
            enabled: true,
            next_at: None,
        };
        let id = db.store.new_trigger_id();
        let made = db.store.create_trigger(TenantId::DEFAULT, id, trigger, "ann").await.unwrap();
        assert_eq!(made, Put::Done(id));
        let task = WorkQueues::new(TaskTracker::new(), CancellationToken::new());
        let begins = async || task.run(&db.store).await.unwrap().work.is_some();
        assert!(begins().await);
        assert!(!begins().await, "it is at work");
        // As a panic would have it.
        task.running.lock().unwrap().values().for_each(|of| of.run.abort());
        task.tracker.close();
        task.tracker.wait().await;
        task.tracker.reopen();
        assert!(begins().await);
        task.stop.cancel();
    }
}
