//! One node's worker for one trigger: claims, hands over, waits, settles.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::limits::QUEUE_TRIGGER_JOBS;
use domain::trigger::{Source, queue};
use domain::{JobId, WorkerId};
use store::events::Event;
use store::events::waited::Waited;
use store::jobs::claim::{Claimed, ClaimedJob};
use store::jobs::settle::{End, Outcome};
use store::triggers::work::{QueueWorker, event_of};
use store::workers::heartbeat::Heartbeat;
use store::workers::register::NewWorker;
use store::{Store, StoreError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::outcome;
use crate::waiting;

/// How long its jobs belong to this node if it goes silent.
const LEASE_MS: i64 = 15_000;
/// How long one look for work waits.
const WAIT: Duration = Duration::from_secs(5);
/// How long the end of a run is waited for before it is looked for anew.
const RUN_WAIT: Duration = Duration::from_secs(600);
/// After the database or anything else of ours failed.
const PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Run {
    store: Store,
    worker: QueueWorker,
    tracker: TaskTracker,
    stop: CancellationToken,
    places: Arc<Semaphore>,
    /// Jobs that can be called off.
    under_way: Mutex<HashMap<JobId, CancellationToken>>,
}

impl Run {
    pub(super) fn new(store: Store, worker: QueueWorker, tracker: TaskTracker, stop: CancellationToken) -> Arc<Self> {
        let places = Arc::new(Semaphore::new(QUEUE_TRIGGER_JOBS));
        Arc::new(Self { store, worker, tracker, stop, places, under_way: Mutex::default() })
    }

    /// Runs until the trigger goes or the node stops; whatever fails is tried again.
    pub(super) async fn until_stopped(self: Arc<Self>) {
        let trigger = self.worker.trigger;
        while !self.stop.is_cancelled() {
            let (id, lost) = match self.register().await {
                Ok(id) => (id, self.stop.child_token()),
                Err(error) => {
                    tracing::warn!(%trigger, %error, "a trigger could not be registered as a worker");
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
            // What is in its hands goes back without burning an attempt; whoever takes it next waits for the same run.
            let removed = self.store.remove_worker(self.worker.tenant, id).await.map(drop);
            if let Err(error) = served.and(removed) {
                tracing::warn!(%trigger, %error, "a trigger begins anew as a worker");
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

    /// Says that the worker lives, and calls off what someone canceled. Returns when the worker is lost.
    async fn keep_alive(&self, id: WorkerId) {
        let every = Duration::from_millis(LEASE_MS as u64 / 3);
        loop {
            let beat = waiting::heartbeat(&self.store, self.worker.tenant, id, None, every, std::future::pending());
            match beat.await {
                Ok(Heartbeat::Alive { cancel, drain, .. }) => {
                    let under_way = self.under_way.lock().expect("nobody panics with the map in hand").clone();
                    cancel.iter().filter_map(|job| under_way.get(job)).for_each(CancellationToken::cancel);
                    if drain || !cancel.is_empty() {
                        // They are answered for in a moment; until then the heartbeat would come back at once.
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                }
                Ok(Heartbeat::Gone | Heartbeat::NotFound) => return,
                Err(error) => {
                    tracing::warn!(trigger = %self.worker.trigger, %error, "a worker could not say that it lives");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Takes jobs as long as there is room.
    async fn serve(self: &Arc<Self>, id: WorkerId, lost: &CancellationToken) -> Result<(), StoreError> {
        loop {
            let Ok(place) = self.places.clone().acquire_owned().await else { return Ok(()) };
            let claim = waiting::Claim {
                store: self.store.clone(),
                tenant: self.worker.tenant,
                worker: id,
                serves: None,
                max: 1 + self.places.available_permits(),
                affinity: None,
            };
            let jobs = match waiting::claim(claim, WAIT, lost.cancelled()).await? {
                // Nobody but the program itself stops it: a new worker takes its place.
                Claimed::Jobs { draining: true, .. } => return Ok(()),
                Claimed::Jobs { jobs, .. } => jobs,
                Claimed::Gone | Claimed::NotFound => return Ok(()),
            };
            let mut place = Some(place);
            for job in jobs {
                let place = place.take().or_else(|| self.places.clone().try_acquire_owned().ok());
                self.tracker.spawn(self.clone().work(id, job, place, lost.clone()));
            }
        }
    }

    /// One job, from claim to settle, unless its worker is lost: then it is whoever's takes it next.
    async fn work(
        self: Arc<Self>,
        id: WorkerId,
        job: ClaimedJob,
        _place: Option<OwnedSemaphorePermit>,
        lost: CancellationToken,
    ) {
        let canceled = CancellationToken::new();
        self.under_way.lock().expect("nobody panics with the map in hand").insert(job.id, canceled.clone());
        let end = tokio::select! {
            end = self.run(&job) => Some(end),
            () = canceled.cancelled() => Some(Ok(End::Cancel)),
            () = lost.cancelled() => None,
        };
        self.under_way.lock().expect("nobody panics with the map in hand").remove(&job.id);
        let settled = match end {
            Some(Ok(end)) => {
                let outcome = Outcome { job: job.id, epoch: job.epoch, end };
                self.store.settle(self.worker.tenant, id, vec![outcome]).await.map(drop)
            }
            Some(Err(error)) => Err(error),
            None => Ok(()),
        };
        if let Err(error) = settled {
            // The database was away: without its worker the job goes back.
            tracing::warn!(job = %job.id, %error, "the end of a run could not be written down");
            lost.cancel();
        }
    }

    /// Hands the job over and waits for what becomes of it.
    async fn run(&self, job: &ClaimedJob) -> Result<End, StoreError> {
        let QueueWorker { tenant, trigger, .. } = self.worker;
        let depth = self.store.job(tenant, job.id).await?.map_or(0, |stored| stored.depth);
        let now = self.store.clock().now();
        let mut event = Event::new(now, tenant, Source::Queue, queue::JOB, depth, job.payload.clone());
        event.id = event_of(job.id, job.attempt);
        let event = event
            .with("queue", job.queue.as_str())
            .with("kind", job.kind.as_str())
            .with("job_id", job.id.to_string())
            .with("attempt", job.attempt.to_string());
        let waited = Waited { trigger, event: event.id };
        self.store.hand_to_trigger(trigger, event).await?;
        loop {
            let runs = waiting::runs(&self.store, tenant, vec![waited], RUN_WAIT, std::future::pending()).await?;
            if let Some(end) = runs.into_iter().next().and_then(outcome::end) {
                return Ok(end);
            }
        }
    }
}
