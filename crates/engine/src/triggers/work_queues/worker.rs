//! The worker of one queue trigger on one node: claims jobs, starts runs, waits for them and settles the jobs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::limits::QUEUE_TRIGGER_JOBS;
use domain::triggers::trigger::{Source, queue};
use domain::{JobId, JobState, WorkerId};
use store::queue::claim::{Claimed, ClaimedJob};
use store::queue::settle::{End, Outcome};
use store::queue::workers::heartbeat::Heartbeat;
use store::queue::workers::register::NewWorker;
use store::signals::refine::SignalChange;
use store::triggers::events::Event;
use store::triggers::events::awaited_runs::AwaitedRun;
use store::triggers::work::{QueueWorker, attempt_event_id};
use store::{Store, StoreError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::outcome;
use crate::queue::long_poll;

/// The worker's lease.
const LEASE_MS: i64 = 15_000;
/// Wait of one claim.
const WAIT: Duration = Duration::from_secs(5);
/// Wait for a run before the wait is restarted.
const RUN_WAIT: Duration = Duration::from_secs(600);
/// Pause after an internal error, such as an unavailable database.
const PAUSE: Duration = Duration::from_secs(1);

pub(super) struct QueueTriggerWorker {
    store: Store,
    worker: QueueWorker,
    tracker: TaskTracker,
    stop: CancellationToken,
    permits: Arc<Semaphore>,
    /// Running jobs, with the token that cancels each.
    running: Mutex<HashMap<JobId, CancellationToken>>,
}

impl QueueTriggerWorker {
    pub(super) fn new(store: Store, worker: QueueWorker, tracker: TaskTracker, stop: CancellationToken) -> Arc<Self> {
        let permits = Arc::new(Semaphore::new(QUEUE_TRIGGER_JOBS));
        Arc::new(Self { store, worker, tracker, stop, permits, running: Mutex::default() })
    }

    /// Runs until the trigger is deleted or the node stops. Restarts after errors.
    pub(super) async fn until_stopped(self: Arc<Self>) {
        let trigger = self.worker.trigger;
        while !self.stop.is_cancelled() {
            let (id, lost) = match self.register().await {
                Ok(id) => (id, self.stop.child_token()),
                Err(error) => {
                    tracing::warn!(%trigger, %error, "failed to register the worker of a queue trigger");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let served = tokio::select! {
                served = self.serve(id, &lost) => served,
                () = self.keep_alive(id) => Ok(()),
                () = lost.cancelled() => Ok(()),
            };
            lost.cancel();
            // Its jobs are released without using up an attempt. The next claim of each waits for the same run.
            let removed = self.store.remove_worker(self.worker.tenant, id).await.map(drop);
            if let Err(error) = served.and(removed) {
                tracing::warn!(%trigger, %error, "the worker of a queue trigger restarts");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    async fn register(&self) -> Result<WorkerId, StoreError> {
        let worker = NewWorker {
            name: format!("trigger {}", self.worker.trigger),
            queues: vec![self.worker.queue.clone()],
            kinds: None,
            affinities: None,
            lease_ms: LEASE_MS,
        };
        self.store.register_worker(self.worker.tenant, worker).await
    }

    /// Sends heartbeats and cancels jobs on request. Returns when the lease has expired.
    async fn keep_alive(&self, id: WorkerId) {
        let every = Duration::from_millis(LEASE_MS as u64 / 3);
        loop {
            let beat = long_poll::heartbeat(&self.store, self.worker.tenant, id, None, every, std::future::pending());
            match beat.await {
                Ok(Heartbeat::Alive { cancel, drain, .. }) => {
                    let running = self.running.lock().expect("lock poisoned").clone();
                    cancel.iter().filter_map(|job| running.get(job)).for_each(CancellationToken::cancel);
                    if drain || !cancel.is_empty() {
                        // The jobs are settled shortly. Until then, the heartbeat would return at once.
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                }
                Ok(Heartbeat::LeaseExpired | Heartbeat::NotFound) => return,
                Err(error) => {
                    tracing::warn!(trigger = %self.worker.trigger, %error, "failed to send a heartbeat");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Claims jobs while permits are free.
    async fn serve(self: &Arc<Self>, id: WorkerId, lost: &CancellationToken) -> Result<(), StoreError> {
        loop {
            let Ok(permit) = self.permits.clone().acquire_owned().await else { return Ok(()) };
            let claim = long_poll::ClaimRequest {
                store: self.store.clone(),
                tenant: self.worker.tenant,
                worker: id,
                serves: None,
                max: 1 + self.permits.available_permits(),
                affinity: None,
            };
            let jobs = match long_poll::claim(claim, WAIT, lost.cancelled()).await? {
                // Only the program itself drains this worker. A new worker replaces it.
                Claimed::Jobs { draining: true, .. } => return Ok(()),
                Claimed::Jobs { jobs, .. } => jobs,
                Claimed::LeaseExpired | Claimed::NotFound => return Ok(()),
            };
            let mut permit = Some(permit);
            for job in jobs {
                let permit = permit.take().or_else(|| self.permits.clone().try_acquire_owned().ok());
                self.tracker.spawn(self.clone().work(id, job, permit, lost.clone()));
            }
        }
    }

    /// Runs one job from claim to settle. If the worker is lost, another worker claims the job.
    async fn work(
        self: Arc<Self>,
        id: WorkerId,
        job: ClaimedJob,
        _permit: Option<OwnedSemaphorePermit>,
        lost: CancellationToken,
    ) {
        let canceled = CancellationToken::new();
        self.running.lock().expect("lock poisoned").insert(job.id, canceled.clone());
        let end = tokio::select! {
            end = self.run(&job) => Some(end),
            () = canceled.cancelled() => Some(Ok(End::Cancel)),
            () = lost.cancelled() => None,
        };
        self.running.lock().expect("lock poisoned").remove(&job.id);
        let settled = match end {
            Some(Ok(end)) => {
                let outcome = Outcome { job: job.id, epoch: job.epoch, end };
                self.store.settle(self.worker.tenant, id, vec![outcome]).await.map(drop)
            }
            Some(Err(error)) => Err(error),
            None => Ok(()),
        };
        if let Err(error) = settled {
            // The database is unavailable. Losing the worker releases the job.
            tracing::warn!(job = %job.id, %error, "failed to settle the job of a queue trigger");
            lost.cancel();
        }
    }

    /// Starts the run of a job and waits for its outcome.
    async fn run(&self, job: &ClaimedJob) -> Result<End, StoreError> {
        let QueueWorker { tenant, trigger, .. } = self.worker;
        if job.state == JobState::Loading {
            // A run has nothing to load.
            let working = SignalChange { epoch: job.epoch, state: Some(JobState::Working), ..SignalChange::default() };
            self.store.signal(tenant, job.id, working).await?;
        }
        let depth = self.store.job(tenant, job.id).await?.map_or(0, |stored| stored.depth);
        let now = self.store.clock().now();
        let mut event = Event::new(now, tenant, Source::Queue, queue::JOB, depth, job.payload.clone());
        event.id = attempt_event_id(job.id, job.attempt);
        let event = event
            .with("queue", job.queue.as_str())
            .with("kind", job.kind.as_str())
            .with("job_id", job.id.to_string())
            .with("attempt", job.attempt.to_string());
        let waited = AwaitedRun { trigger, event: event.id };
        self.store.enqueue_worker_run(trigger, event).await?;
        loop {
            let runs = long_poll::runs(&self.store, tenant, vec![waited], RUN_WAIT, std::future::pending()).await?;
            if let Some(end) = runs.into_iter().next().and_then(outcome::end) {
                return Ok(end);
            }
        }
    }
}
