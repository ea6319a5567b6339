//! One slot of a pool: claims, posts and settles. `model` brings up what the jobs need.

mod model;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use domain::pool::{Member, PoolSpec, Slot};
use domain::{JobId, JobState, Label, WorkerId};
use futures_util::future::join_all;
use store::jobs::claim::{Claimed, ClaimedJob};
use store::jobs::settle::{End, Outcome as Settle};
use store::signals::refine::SignalChange;
use store::workers::heartbeat::Heartbeat;
use store::workers::register::NewWorker;
use store::{Store, StoreError};
use tokio_util::sync::CancellationToken;

use self::model::{is_up, is_well};
use super::handle::post;
use super::{Reserved, Shared};
use crate::relay::Relay;
use crate::waiting;

/// How long a slot belongs to this node if it goes silent.
const LEASE_MS: i64 = 15_000;
/// How long one look for work waits.
const WAIT: Duration = Duration::from_secs(1);
/// How often a runtime that is coming up is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// After the database or anything else of ours failed.
const PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Run {
    pub(super) store: Store,
    pub(super) node: String,
    pub(super) http: reqwest::Client,
    pub(super) relay: Relay,
    pub(super) spec: PoolSpec,
    pub(super) slot: Slot,
    pub(super) number: usize,
    pub(super) shared: Arc<Shared>,
    pub(super) stop: CancellationToken,
}

/// What a slot has in its hands.
#[derive(Default)]
struct Holding {
    member: Option<Member>,
    /// When it was brought up here; who has posted to it since, the slots know together.
    used_at: Option<Instant>,
}

/// A registered worker, and the jobs of it that can be called off.
struct Worker {
    id: WorkerId,
    /// What it was registered for.
    serves: Vec<Label>,
    under_way: Arc<Mutex<HashMap<JobId, CancellationToken>>>,
}

impl Worker {
    fn call_off(&self, jobs: &[JobId]) {
        let under_way = self.under_way.lock().expect("nobody panics with the map in hand");
        jobs.iter().filter_map(|job| under_way.get(job)).for_each(CancellationToken::cancel);
    }

    /// From now on these can be called off, whether or not their model is up.
    fn watch(&self, jobs: &[ClaimedJob]) {
        let mut under_way = self.under_way.lock().expect("nobody panics with the map in hand");
        under_way.extend(jobs.iter().map(|job| (job.id, CancellationToken::new())));
    }

    fn forget(&self, jobs: &[ClaimedJob]) {
        let mut under_way = self.under_way.lock().expect("nobody panics with the map in hand");
        under_way.retain(|id, _| jobs.iter().all(|job| job.id != *id));
    }

    fn canceled(&self, job: JobId) -> CancellationToken {
        let under_way = self.under_way.lock().expect("nobody panics with the map in hand");
        under_way.get(&job).cloned().unwrap_or_default()
    }
}

impl Run {
    /// Runs until the pool is stopped; whatever fails is tried again.
    pub(super) async fn until_stopped(self) {
        let mut holding = self.take_over().await;
        self.put_away().await;
        let is_to_come = |first: &&Member| {
            holding.member.as_ref().is_none_or(|member| member == *first)
                && self.shared.slot_of(&first.affinity).is_none()
        };
        if let Some(first) = self.slot.first.as_ref().filter(is_to_come) {
            let loaded = tokio::select! {
                loaded = self.load(&mut holding, first) => loaded,
                () = self.stop.cancelled() => return,
            };
            match loaded {
                Ok(took) => self.count(took, 0),
                Err(cause) => self.shared.back_off(&first.affinity, &cause, self.store.clock().now()),
            }
        }
        while !self.stop.is_cancelled() {
            let worker = match self.register().await {
                Ok(worker) => worker,
                Err(error) => {
                    tracing::warn!(pool = %self.shared.name, %error, "a slot could not be registered");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let served = tokio::select! {
                served = self.serve(&worker, &mut holding) => served,
                () = self.keep_alive(&worker) => Ok(()),
                () = self.stop.cancelled() => Ok(()),
            };
            self.unreserve(&holding);
            let removed = self.remove(worker.id).await;
            if let Err(error) = served.and(removed) {
                tracing::warn!(pool = %self.shared.name, slot = self.number, %error, "a slot begins anew");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// A load that was broken off before anything was started: another slot may have the model.
    fn unreserve(&self, holding: &Holding) {
        for member in &self.slot.members {
            let is_mine = self.shared.slot_of(&member.affinity) == Some(self.number);
            if is_mine && holding.member.as_ref() != Some(member) {
                self.shared.leave(&member.affinity, self.number);
            }
        }
    }

    /// What is in its hands goes back without burning an attempt. While the database is away that is tried again: once the
    /// lease has run out, it would burn one.
    async fn remove(&self, worker: WorkerId) -> Result<(), StoreError> {
        loop {
            match self.store.remove_worker(self.shared.tenant, worker).await {
                Err(error) if error.is_unavailable() && !self.stop.is_cancelled() => tokio::time::sleep(PAUSE).await,
                removed => return removed.map(drop),
            }
        }
    }

    /// A runtime that is up already, from before a restart, is taken on by the slot whose turn it is.
    async fn take_over(&self) -> Holding {
        let mut up = 0;
        for member in &self.slot.members {
            let runtime = self.store.runtime(self.shared.tenant, &member.runtime).await.ok().flatten();
            let Some(runtime) = runtime.filter(is_up) else { continue };
            // Slots with the same members number those that are up in the same way.
            let wanted = if self.slot.pinned { 0 } else { self.number - self.pinned() };
            if up == wanted {
                // One that is still coming up is waited for by whoever needs it.
                if is_well(&runtime) {
                    self.loaded(member);
                }
                return Holding { member: Some(member.clone()), used_at: Some(Instant::now()) };
            }
            up += 1;
        }
        Holding::default()
    }

    /// More may be up than there are slots, after a pool was made smaller.
    async fn put_away(&self) {
        if self.slot.pinned || self.number != self.pinned() {
            return;
        }
        let room = self.spec.slots as usize - self.pinned();
        let mut up = 0;
        for member in &self.slot.members {
            let runtime = self.store.runtime(self.shared.tenant, &member.runtime).await.ok().flatten();
            if runtime.as_ref().is_some_and(is_up) {
                up += 1;
                if up > room
                    && let Err(cause) = self.unload(member).await
                {
                    tracing::warn!(pool = %self.shared.name, model = %member.affinity, cause, "a model stays up");
                }
            }
        }
    }

    fn pinned(&self) -> usize {
        self.spec.members.iter().filter(|member| member.stay == domain::pool::Stay::Pinned).count()
    }

    /// A worker for all members that are not left alone now.
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
        let id = self.store.register_worker(self.shared.tenant, worker).await?;
        Ok(Worker { id, serves, under_way: Arc::default() })
    }

    /// Says that the slot lives, and calls off what someone canceled. Returns when the worker is lost.
    async fn keep_alive(&self, worker: &Worker) {
        let every = Duration::from_millis(LEASE_MS as u64 / 3);
        loop {
            let beat =
                waiting::heartbeat(&self.store, self.shared.tenant, worker.id, None, every, std::future::pending());
            match beat.await {
                // Either is told again at once, until the jobs have ended.
                Ok(Heartbeat::Alive { cancel, drain, .. }) => {
                    worker.call_off(&cancel);
                    if drain {
                        tokio::time::sleep(PAUSE).await;
                    } else if !cancel.is_empty() {
                        tokio::time::sleep(LOOK).await;
                    }
                }
                Ok(Heartbeat::Gone | Heartbeat::NotFound) => return,
                Err(error) => {
                    tracing::warn!(pool = %self.shared.name, %error, "a slot could not say that it lives");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Takes work until the set of models that it may serve changes.
    async fn serve(&self, worker: &Worker, holding: &mut Holding) -> Result<(), StoreError> {
        loop {
            self.look_after(holding).await?;
            let Some(jobs) = self.take(worker, holding).await? else { return Ok(()) };
            if !jobs.is_empty() && !self.work(worker, holding, jobs).await? {
                return Ok(());
            }
            let backing_off = self.shared.backing_off(self.store.clock().now());
            let may = |member: &&Member| !backing_off.contains_key(member.affinity.as_str());
            if self.slot.members.iter().filter(may).count() != worker.serves.len() {
                return Ok(());
            }
        }
    }

    /// The next jobs; `None` when another worker is to take this one's place.
    async fn take(&self, worker: &Worker, holding: &Holding) -> Result<Option<Vec<ClaimedJob>>, StoreError> {
        // Jobs that need no model would come all the same, and there is none to do them.
        if worker.serves.is_empty() {
            tokio::time::sleep(WAIT).await;
            return Ok(Some(Vec::new()));
        }
        let claim = waiting::Claim {
            store: self.store.clone(),
            tenant: self.shared.tenant,
            worker: worker.id,
            serves: None,
            max: self.spec.handler.at_once as usize,
            affinity: holding.member.as_ref().map(|member| member.affinity.clone()),
        };
        Ok(match waiting::claim(claim, WAIT, self.stop.cancelled()).await? {
            // A slot has no end of its own: its pool is made smaller, or deleted.
            Claimed::Jobs { draining: true, .. } | Claimed::Gone | Claimed::NotFound => None,
            Claimed::Jobs { jobs, .. } => Some(jobs),
        })
    }

    /// Does jobs of one affinity. Whether the slot may go on as it is.
    async fn work(&self, worker: &Worker, holding: &mut Holding, jobs: Vec<ClaimedJob>) -> Result<bool, StoreError> {
        worker.watch(&jobs);
        let worked = self.load_and_post(worker, holding, &jobs).await;
        worker.forget(&jobs);
        worked
    }

    async fn load_and_post(
        &self,
        worker: &Worker,
        holding: &mut Holding,
        jobs: &[ClaimedJob],
    ) -> Result<bool, StoreError> {
        let wanted = jobs.iter().find_map(|job| job.affinity.clone());
        let member = match wanted {
            Some(affinity) => self.slot.members.iter().find(|member| member.affinity == affinity),
            // Work that needs no model fits the one that is up, or else any that is not left alone.
            None => {
                let may = |member: &&Member| worker.serves.contains(&member.affinity);
                holding.member.as_ref().filter(may).or_else(|| self.slot.members.iter().find(may))
            }
        };
        let Some(member) = member.cloned() else {
            self.give_back(worker, jobs).await?;
            return Ok(false);
        };
        if self.reserved(&member.affinity).await {
            self.tell(jobs, Some(JobState::Loading), format!("{} is being loaded", member.affinity)).await;
            match self.load(holding, &member).await {
                Ok(took) => self.count(took, 1),
                Err(cause) => {
                    self.shared.back_off(&member.affinity, &cause, self.store.clock().now());
                    tracing::warn!(pool = %self.shared.name, model = %member.affinity, cause, "a model cannot be loaded");
                    let pool = self.shared.name.to_string();
                    metrics::counter!("windlass_pool_load_failures_total", "pool" => pool).increment(1);
                    // How long that takes is told by `why` and by the pool; said here it would be old in a second.
                    let words =
                        format!("{} could not be loaded: {cause}; it is tried again by itself", member.affinity);
                    self.tell(jobs, None, words).await;
                    self.give_back(worker, jobs).await?;
                    return Ok(false);
                }
            }
            self.tell(jobs, Some(JobState::Working), format!("{} is loaded", member.affinity)).await;
        }
        let in_use = self.shared.in_use(&member.affinity);
        let _used = in_use.read().await;
        let endpoint =
            self.store.runtime(self.shared.tenant, &member.runtime).await?.and_then(|runtime| runtime.endpoint);
        let Some(endpoint) = endpoint else {
            self.shared.member(&member.affinity, |state| state.state = "idle".into());
            self.give_back(worker, jobs).await?;
            return Ok(true);
        };
        let posted = jobs.iter().map(|job| self.one(worker, &endpoint, job));
        let settled = join_all(posted).await;
        self.shared.used(&member.affinity);
        settled.into_iter().collect::<Result<(), StoreError>>()?;
        Ok(true)
    }

    /// Whether this slot is to load it. While another does, this one waits; what another has up is shared.
    async fn reserved(&self, affinity: &Label) -> bool {
        loop {
            match self.shared.reserve(affinity, self.number, self.store.clock().now()) {
                Reserved::Here => return true,
                Reserved::Up => return false,
                Reserved::Coming => tokio::time::sleep(LOOK).await,
            }
        }
    }

    /// Posts one job, unless it was called off before, and settles it.
    async fn one(&self, worker: &Worker, endpoint: &str, job: &ClaimedJob) -> Result<(), StoreError> {
        let canceled = worker.canceled(job.id);
        let end = tokio::select! {
            biased;
            () = canceled.cancelled() => End::Cancel,
            end = post(&self.http, &self.relay, endpoint, &self.spec.handler, job) => end,
        };
        self.settle(worker, vec![Settle { job: job.id, epoch: job.epoch, end }]).await
    }

    /// An answer is kept in hand while the database is away; that ends with the worker.
    async fn settle(&self, worker: &Worker, outcomes: Vec<Settle>) -> Result<(), StoreError> {
        loop {
            match self.store.settle(self.shared.tenant, worker.id, outcomes.clone()).await {
                Err(error) if error.is_unavailable() => {
                    tracing::warn!(pool = %self.shared.name, %error, "an answer could not be written down yet");
                    tokio::time::sleep(PAUSE).await;
                }
                settled => return settled.map(drop),
            }
        }
    }

    async fn give_back(&self, worker: &Worker, jobs: &[ClaimedJob]) -> Result<(), StoreError> {
        let end = |job: &ClaimedJob| match worker.canceled(job.id).is_cancelled() {
            true => End::Cancel,
            false => End::Release,
        };
        let outcomes = jobs.iter().map(|job| Settle { job: job.id, epoch: job.epoch, end: end(job) });
        self.settle(worker, outcomes.collect()).await
    }

    /// Says how the jobs go. That it could not be said stops nothing.
    async fn tell(&self, jobs: &[ClaimedJob], state: Option<JobState>, summary: String) {
        for job in jobs {
            let change =
                SignalChange { epoch: job.epoch, state, summary: Some(summary.clone()), ..SignalChange::default() };
            if let Err(error) = self.store.signal(self.shared.tenant, job.id, change).await {
                tracing::debug!(job = %job.id, %error, "a signal could not be written");
            }
        }
    }
}
