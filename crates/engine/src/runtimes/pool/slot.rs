//! One slot of a pool: claims, posts and settles jobs. `model` loads and unloads models.

mod model;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use domain::runtimes::pool::{Member, PoolSpec, Slot};
use domain::{JobId, JobState, Label, WorkerId};
use futures_util::future::join_all;
use store::queue::claim::{Claimed, ClaimedJob};
use store::queue::settle::{End, Outcome as Settle};
use store::queue::workers::heartbeat::Heartbeat;
use store::queue::workers::register::NewWorker;
use store::signals::refine::SignalChange;
use store::{Store, StoreError};
use tokio_util::sync::CancellationToken;

use self::model::{is_healthy, is_up};
use super::handle::post;
use super::{PoolShared, Reservation};
use crate::queue::long_poll;
use crate::queue::relay::Relay;

/// The lease of the slot's worker.
const LEASE_MS: i64 = 15_000;
/// Wait of one claim.
const WAIT: Duration = Duration::from_secs(1);
/// Interval between checks of a runtime that is starting.
const POLL: Duration = Duration::from_millis(100);
/// Pause after an internal error, such as an unavailable database.
const PAUSE: Duration = Duration::from_secs(1);

pub(super) struct SlotRunner {
    pub(super) store: Store,
    pub(super) node: String,
    pub(super) http: reqwest::Client,
    pub(super) relay: Relay,
    pub(super) spec: PoolSpec,
    pub(super) slot: Slot,
    pub(super) number: usize,
    pub(super) shared: Arc<PoolShared>,
    pub(super) stop: CancellationToken,
}

/// The model that a slot has loaded or tried to load.
#[derive(Default)]
struct HeldModel {
    member: Option<Member>,
    /// When it was loaded here. `PoolShared::used_at` records posts by any slot.
    used_at: Option<Instant>,
}

/// A registered worker, and its running jobs.
struct Worker {
    id: WorkerId,
    /// The affinities that it was registered for.
    serves: Vec<Label>,
    running: Arc<Mutex<HashMap<JobId, CancellationToken>>>,
}

impl Worker {
    fn cancel(&self, jobs: &[JobId]) {
        let running = self.running.lock().expect("lock poisoned");
        jobs.iter().filter_map(|job| running.get(job)).for_each(CancellationToken::cancel);
    }

    /// Makes the jobs cancelable, also while their model is being loaded.
    fn track(&self, jobs: &[ClaimedJob]) {
        let mut running = self.running.lock().expect("lock poisoned");
        running.extend(jobs.iter().map(|job| (job.id, CancellationToken::new())));
    }

    fn untrack(&self, jobs: &[ClaimedJob]) {
        let mut running = self.running.lock().expect("lock poisoned");
        running.retain(|id, _| jobs.iter().all(|job| job.id != *id));
    }

    fn canceled(&self, job: JobId) -> CancellationToken {
        let running = self.running.lock().expect("lock poisoned");
        running.get(&job).cloned().unwrap_or_default()
    }
}

impl SlotRunner {
    /// Runs until the pool is stopped. Restarts after errors.
    pub(super) async fn until_stopped(self) {
        let mut held = self.adopt_running().await;
        self.unload_excess().await;
        let must_load = |first: &&Member| {
            held.member.as_ref().is_none_or(|member| member == *first) && self.shared.slot_of(&first.affinity).is_none()
        };
        if let Some(first) = self.slot.first.as_ref().filter(must_load) {
            let loaded = tokio::select! {
                loaded = self.load(&mut held, first) => loaded,
                () = self.stop.cancelled() => return,
            };
            match loaded {
                Ok(took) => self.count_load(took, 0),
                Err(cause) => self.shared.back_off(&first.affinity, &cause, self.store.clock().now()),
            }
        }
        while !self.stop.is_cancelled() {
            let worker = match self.register().await {
                Ok(worker) => worker,
                Err(error) => {
                    tracing::warn!(pool = %self.shared.name, %error, "failed to register a slot");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let served = tokio::select! {
                served = self.serve(&worker, &mut held) => served,
                () = self.keep_alive(&worker) => Ok(()),
                () = self.stop.cancelled() => Ok(()),
            };
            self.release_unloaded(&held);
            let removed = self.remove(worker.id).await;
            if let Err(error) = served.and(removed) {
                tracing::warn!(pool = %self.shared.name, slot = self.number, %error, "a slot restarts");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Releases the reservations of interrupted loads, so that other slots can load the models.
    fn release_unloaded(&self, held: &HeldModel) {
        for member in &self.slot.members {
            let is_mine = self.shared.slot_of(&member.affinity) == Some(self.number);
            if is_mine && held.member.as_ref() != Some(member) {
                self.shared.release(&member.affinity, self.number);
            }
        }
    }

    /// Removes the worker, which releases its jobs without using up an attempt. Retries while the database is
    /// unavailable, because the expiry of the lease would use up an attempt.
    async fn remove(&self, worker: WorkerId) -> Result<(), StoreError> {
        loop {
            match self.store.remove_worker(self.shared.tenant, worker).await {
                Err(error) if error.is_unavailable() && !self.stop.is_cancelled() => tokio::time::sleep(PAUSE).await,
                removed => return removed.map(drop),
            }
        }
    }

    /// Adopts a runtime that is already up from before a restart. Each slot adopts a different one.
    async fn adopt_running(&self) -> HeldModel {
        let mut up = 0;
        for member in &self.slot.members {
            let runtime = self.store.runtime(self.shared.tenant, &member.runtime).await.ok().flatten();
            let Some(runtime) = runtime.filter(is_up) else { continue };
            // Slots with the same members number the running runtimes identically.
            let wanted = if self.slot.pinned { 0 } else { self.number - self.pinned() };
            if up == wanted {
                // A runtime that is still starting is awaited when a job needs it.
                if is_healthy(&runtime) {
                    self.loaded(member);
                }
                return HeldModel { member: Some(member.clone()), used_at: Some(Instant::now()) };
            }
            up += 1;
        }
        HeldModel::default()
    }

    /// Stops runtimes beyond the number of slots, after a pool was made smaller.
    async fn unload_excess(&self) {
        if self.slot.pinned || self.number != self.pinned() {
            return;
        }
        let capacity = self.spec.slots as usize - self.pinned();
        let mut up = 0;
        for member in &self.slot.members {
            let runtime = self.store.runtime(self.shared.tenant, &member.runtime).await.ok().flatten();
            if runtime.as_ref().is_some_and(is_up) {
                up += 1;
                if up > capacity
                    && let Err(cause) = self.unload(member).await
                {
                    tracing::warn!(pool = %self.shared.name, model = %member.affinity, cause, "failed to unload a model");
                }
            }
        }
    }

    fn pinned(&self) -> usize {
        self.spec.members.iter().filter(|member| member.stay == domain::runtimes::pool::Stay::Pinned).count()
    }

    /// Registers a worker for all members that are not in backoff.
    async fn register(&self) -> Result<Worker, StoreError> {
        let backing_off = self.shared.backing_off(self.store.clock().now());
        let serves: Vec<Label> = self
            .slot
            .members
            .iter()
            .map(|member| member.affinity.clone())
            .filter(|affinity| !backing_off.contains_key(affinity.as_str()))
            .collect();
        let worker = NewWorker {
            name: format!("pool {} slot {}", self.shared.name, self.number),
            queues: vec![self.spec.queue.clone()],
            kinds: None,
            affinities: Some(serves.clone()),
            lease_ms: LEASE_MS,
        };
        let id = self.store.register_node_worker(self.shared.tenant, &self.node, worker).await?;
        Ok(Worker { id, serves, running: Arc::default() })
    }

    /// Sends heartbeats and cancels jobs on request. Returns when the lease has expired.
    async fn keep_alive(&self, worker: &Worker) {
        let every = Duration::from_millis(LEASE_MS as u64 / 3);
        loop {
            let beat =
                long_poll::heartbeat(&self.store, self.shared.tenant, worker.id, None, every, std::future::pending());
            match beat.await {
                // Both are reported on every heartbeat until the jobs have ended.
                Ok(Heartbeat::Alive { cancel, drain, .. }) => {
                    worker.cancel(&cancel);
                    if drain {
                        tokio::time::sleep(PAUSE).await;
                    } else if !cancel.is_empty() {
                        tokio::time::sleep(POLL).await;
                    }
                }
                Ok(Heartbeat::LeaseExpired | Heartbeat::NotFound) => return,
                Err(error) => {
                    tracing::warn!(pool = %self.shared.name, %error, "failed to send a slot's heartbeat");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Runs jobs until the set of models in backoff changes.
    async fn serve(&self, worker: &Worker, held: &mut HeldModel) -> Result<(), StoreError> {
        loop {
            let had_model = held.member.is_some();
            self.check_model(held).await?;
            if had_model && held.member.is_none() {
                // The worker is registered with the affinity that it held. A new one starts without any, so that its jobs
                // start in `loading`.
                return Ok(());
            }
            let Some(jobs) = self.claim(worker, held).await? else { return Ok(()) };
            if !jobs.is_empty() && !self.work(worker, held, jobs).await? {
                return Ok(());
            }
            let backing_off = self.shared.backing_off(self.store.clock().now());
            let may = |member: &&Member| !backing_off.contains_key(member.affinity.as_str());
            if self.slot.members.iter().filter(may).count() != worker.serves.len() {
                return Ok(());
            }
        }
    }

    /// Claims jobs. `None` if the worker must be replaced.
    async fn claim(&self, worker: &Worker, held: &HeldModel) -> Result<Option<Vec<ClaimedJob>>, StoreError> {
        // The claim would still return jobs without an affinity, and no model is available for them.
        if worker.serves.is_empty() {
            tokio::time::sleep(WAIT).await;
            return Ok(Some(Vec::new()));
        }
        let claim = long_poll::ClaimRequest {
            store: self.store.clone(),
            tenant: self.shared.tenant,
            worker: worker.id,
            serves: None,
            max: self.spec.handler.at_once as usize,
            affinity: held.member.as_ref().map(|member| member.affinity.clone()),
        };
        Ok(match long_poll::claim(claim, WAIT, self.stop.cancelled()).await? {
            // A slot is not drained like a worker: its pool is made smaller or deleted.
            Claimed::Jobs { draining: true, .. } | Claimed::LeaseExpired | Claimed::NotFound => None,
            Claimed::Jobs { jobs, .. } => Some(jobs),
        })
    }

    /// Runs jobs of one affinity. Returns false if the worker must be replaced.
    async fn work(&self, worker: &Worker, held: &mut HeldModel, jobs: Vec<ClaimedJob>) -> Result<bool, StoreError> {
        worker.track(&jobs);
        let worked = self.load_and_post(worker, held, &jobs).await;
        worker.untrack(&jobs);
        worked
    }

    async fn load_and_post(
        &self,
        worker: &Worker,
        held: &mut HeldModel,
        jobs: &[ClaimedJob],
    ) -> Result<bool, StoreError> {
        let wanted = jobs.iter().find_map(|job| job.affinity.clone());
        let member = match wanted {
            Some(affinity) => self.slot.members.iter().find(|member| member.affinity == affinity),
            // A job without an affinity fits the loaded model, else any model that is not in backoff.
            None => {
                let may = |member: &&Member| worker.serves.contains(&member.affinity);
                held.member.as_ref().filter(may).or_else(|| self.slot.members.iter().find(may))
            }
        };
        let Some(member) = member.cloned() else {
            self.release(worker, jobs).await?;
            return Ok(false);
        };
        let has_loading_jobs = jobs.iter().any(|job| job.state == JobState::Loading);
        if self.reserve(&member.affinity).await {
            self.signal(jobs, Some(JobState::Loading), format!("{} is being loaded", member.affinity)).await;
            match self.load(held, &member).await {
                Ok(took) => self.count_load(took, 1),
                Err(cause) => {
                    self.shared.back_off(&member.affinity, &cause, self.store.clock().now());
                    tracing::warn!(pool = %self.shared.name, model = %member.affinity, cause, "failed to load a model");
                    let pool = self.shared.name.to_string();
                    metrics::counter!("windlass_pool_load_failures_total", "pool" => pool).increment(1);
                    // Without the time of the next attempt, which would soon be outdated. `why` and the pool show it.
                    let summary = format!("{} could not be loaded: {cause}; retrying automatically", member.affinity);
                    self.signal(jobs, None, summary).await;
                    self.release(worker, jobs).await?;
                    return Ok(false);
                }
            }
            self.signal(jobs, Some(JobState::Working), format!("{} is loaded", member.affinity)).await;
        } else if has_loading_jobs {
            // Another slot has loaded it.
            self.signal(jobs, Some(JobState::Working), format!("{} is loaded", member.affinity)).await;
        }
        let in_use = self.shared.in_use(&member.affinity);
        let _in_use = in_use.read().await;
        let endpoint =
            self.store.runtime(self.shared.tenant, &member.runtime).await?.and_then(|runtime| runtime.endpoint);
        let Some(endpoint) = endpoint else {
            self.shared.member(&member.affinity, |state| state.state = "idle".into());
            self.release(worker, jobs).await?;
            return Ok(true);
        };
        let posted = jobs.iter().map(|job| self.run_job(worker, &endpoint, job));
        let settled = join_all(posted).await;
        self.shared.used(&member.affinity);
        settled.into_iter().collect::<Result<(), StoreError>>()?;
        Ok(true)
    }

    /// Returns true if this slot must load the model. Waits while another slot loads it, and shares a model that is
    /// loaded.
    async fn reserve(&self, affinity: &Label) -> bool {
        loop {
            match self.shared.reserve(affinity, self.number, self.store.clock().now()) {
                Reservation::Granted => return true,
                Reservation::AlreadyUp => return false,
                Reservation::LoadingElsewhere => tokio::time::sleep(POLL).await,
            }
        }
    }

    /// Posts one job, unless it was canceled before, and settles it.
    async fn run_job(&self, worker: &Worker, endpoint: &str, job: &ClaimedJob) -> Result<(), StoreError> {
        let canceled = worker.canceled(job.id);
        let end = tokio::select! {
            biased;
            () = canceled.cancelled() => End::Cancel,
            end = post(&self.http, &self.relay, endpoint, &self.spec.handler, job) => end,
        };
        self.settle(worker, vec![Settle { job: job.id, epoch: job.epoch, end }]).await
    }

    /// Settles jobs. Retries while the database is unavailable, until the worker is lost.
    async fn settle(&self, worker: &Worker, outcomes: Vec<Settle>) -> Result<(), StoreError> {
        loop {
            match self.store.settle(self.shared.tenant, worker.id, outcomes.clone()).await {
                Err(error) if error.is_unavailable() => {
                    tracing::warn!(pool = %self.shared.name, %error, "failed to record a result; retrying");
                    tokio::time::sleep(PAUSE).await;
                }
                settled => return settled.map(drop),
            }
        }
    }

    async fn release(&self, worker: &Worker, jobs: &[ClaimedJob]) -> Result<(), StoreError> {
        let end = |job: &ClaimedJob| match worker.canceled(job.id).is_cancelled() {
            true => End::Cancel,
            false => End::Release,
        };
        let outcomes = jobs.iter().map(|job| Settle { job: job.id, epoch: job.epoch, end: end(job) });
        self.settle(worker, outcomes.collect()).await
    }

    /// Writes a signal of each job. An error does not affect the jobs.
    async fn signal(&self, jobs: &[ClaimedJob], state: Option<JobState>, summary: String) {
        for job in jobs {
            let change =
                SignalChange { epoch: job.epoch, state, summary: Some(summary.clone()), ..SignalChange::default() };
            if let Err(error) = self.store.signal(self.shared.tenant, job.id, change).await {
                tracing::debug!(job = %job.id, %error, "failed to write a signal");
            }
        }
    }
}
