//! Runs queue triggers. Each node registers a worker per trigger, writes an outbox row for each claimed job, and
//! settles the job with the outcome of the run.
//!
//! The job's own retry policy and dead letter apply. One run is one attempt of the job.

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

use crate::task::{Task, TaskOutcome};

pub(crate) struct WorkQueues {
    tracker: TaskTracker,
    stop: CancellationToken,
    running: Mutex<HashMap<domain::TriggerId, RunningWorker>>,
}

struct RunningWorker {
    worker: QueueWorker,
    stop: CancellationToken,
    run: JoinHandle<()>,
}

impl RunningWorker {
    /// False if the worker panicked. It is then restarted.
    fn is_running(&self) -> bool {
        let panicked = self.run.is_finished() && !self.stop.is_cancelled();
        if panicked {
            metrics::counter!("windlass_task_errors_total", "task" => WorkQueues::NAME).increment(1);
            tracing::error!(trigger = %self.worker.trigger, "the worker of a queue trigger panicked and is restarted");
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

    async fn run(&self, store: &Store) -> Result<TaskOutcome, StoreError> {
        if self.stop.is_cancelled() {
            return Ok(TaskOutcome::nothing());
        }
        let wanted = store.queue_workers().await?;
        let mut running = self.running.lock().expect("lock poisoned");
        running.retain(|_, of| {
            let stays = wanted.contains(&of.worker) && of.is_running();
            if !stays {
                of.stop.cancel();
            }
            stays
        });
        let mut started = 0;
        for worker in wanted {
            if running.contains_key(&worker.trigger) {
                continue;
            }
            let stop = self.stop.child_token();
            let run =
                worker::QueueTriggerWorker::new(store.clone(), worker.clone(), self.tracker.clone(), stop.clone());
            let run = self.tracker.spawn(run.until_stopped());
            running.insert(worker.trigger, RunningWorker { worker, stop, run });
            started += 1;
        }
        let work = || TaskOutcome::work(format!("{started} queue triggers started"));
        Ok(if started > 0 { work() } else { TaskOutcome::nothing() })
    }
}

#[cfg(test)]
mod tests {
    use domain::triggers::trigger::Source;
    use domain::{RetryPolicy, TenantId};
    use store::triggers::put::TriggerPut;
    use store::triggers::{Mode, NewTrigger};
    use testkit::Database;

    use super::*;

    #[tokio::test]
    async fn an_interrupted_queue_trigger_starts_again() {
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
            handles: false,
            next_at: None,
        };
        let id = db.store.new_trigger_id();
        let made = db.store.create_trigger(TenantId::DEFAULT, id, trigger, "ann").await.unwrap();
        assert_eq!(made, TriggerPut::Done(id));
        let task = WorkQueues::new(TaskTracker::new(), CancellationToken::new());
        let starts = async || task.run(&db.store).await.unwrap().work.is_some();
        assert!(starts().await);
        assert!(!starts().await, "it is running");
        // Simulates a panic.
        task.running.lock().unwrap().values().for_each(|of| of.run.abort());
        task.tracker.close();
        task.tracker.wait().await;
        task.tracker.reopen();
        assert!(starts().await);
        task.stop.cancel();
    }
}
