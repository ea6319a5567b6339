//! One slot of a pool: claims, swaps, posts, settles, and stops what nobody needs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use domain::limits::RUNTIME_LOAD_S;
use domain::pool::{Member, PoolSpec, Slot};
use domain::runtime::{HealthStatus, OperationKind, OperationSource, RuntimeStatus};
use domain::{JobId, JobState, Label, WorkerId};
use futures_util::future::join_all;
use store::jobs::claim::{Claimed, ClaimedJob};
use store::jobs::settle::{End, Outcome as Settle};
use store::runtimes::Outcome;
use store::runtimes::request::{NewOperation, Requested};
use store::signals::refine::SignalChange;
use store::workers::heartbeat::Heartbeat;
use store::workers::register::NewWorker;
use store::{Store, StoreError};
use tokio_util::sync::CancellationToken;

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
}

impl Run {
    /// Runs until the pool is stopped; whatever fails is tried again.
    pub(super) async fn until_stopped(self) {
        let mut holding = self.take_over().await;
        self.put_away().await;
        if let (None, Some(first)) = (&holding.member, &self.slot.first) {
            let loaded = tokio::select! {
                loaded = self.load(&mut holding, first) => loaded,
                () = self.stop.cancelled() => return,
            };
            if let Err(cause) = loaded {
                self.shared.back_off(&first.affinity, &cause, self.store.clock().now());
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
            // A load that was broken off: the runtime may be up, and has its place here.
            if holding.member.is_none() {
                let mine = |member: &&Member| self.shared.slot_of(&member.affinity) == Some(self.number);
                holding.member = self.slot.members.iter().find(mine).cloned();
            }
            // What is in its hands goes back without burning an attempt.
            let removed = self.store.remove_worker(self.shared.tenant, worker.id).await.map(drop);
            if let Err(error) = served.and(removed) {
                tracing::warn!(pool = %self.shared.name, slot = self.number, %error, "a slot begins anew");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// A runtime that is up already, from before a restart, is taken on by the slot whose turn it is.
    async fn take_over(&self) -> Holding {
        let mut up = 0;
        for member in &self.slot.members {
            let runtime = self.store.runtime(self.shared.tenant, &member.runtime).await.ok().flatten();
            if !runtime.is_some_and(|runtime| runtime.status == RuntimeStatus::Running) {
                continue;
            }
            // Slots with the same members number those that are up in the same way.
            let wanted = if self.slot.pinned { 0 } else { self.number - self.pinned() };
            if up == wanted {
                self.loaded(member);
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
            if runtime.is_some_and(|runtime| runtime.status == RuntimeStatus::Running) {
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
                Ok(Heartbeat::Alive { cancel, .. }) => {
                    worker.call_off(&cancel);
                    if !cancel.is_empty() {
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
            let held = holding.member.as_ref().map(|member| member.affinity.clone());
            let at_once = self.spec.handler.at_once as usize;
            let claim = waiting::Claim {
                store: &self.store,
                tenant: self.shared.tenant,
                worker: worker.id,
                serves: None,
                max: at_once,
                affinity: held,
            };
            let jobs = match waiting::claim(claim, WAIT, self.stop.cancelled()).await? {
                Claimed::Jobs { jobs, .. } => jobs,
                Claimed::Gone | Claimed::NotFound => return Ok(()),
            };
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

    /// Does jobs of one affinity. Whether the slot may go on as it is.
    async fn work(&self, worker: &Worker, holding: &mut Holding, jobs: Vec<ClaimedJob>) -> Result<bool, StoreError> {
        let wanted = jobs.iter().find_map(|job| job.affinity.clone());
        let member = match wanted {
            Some(affinity) => self.slot.members.iter().find(|member| member.affinity == affinity),
            // Work that needs no model fits the one that is up.
            None => holding.member.as_ref().or(self.slot.members.first()),
        };
        let Some(member) = member.cloned() else {
            self.give_back(worker, &jobs).await?;
            return Ok(false);
        };
        if self.reserved(&member.affinity).await {
            self.tell(&jobs, Some(JobState::Loading), format!("{} is being loaded", member.affinity)).await;
            if let Err(cause) = self.load(holding, &member).await {
                let until = self.shared.back_off(&member.affinity, &cause, self.store.clock().now());
                let wait_s = until.ms_since(self.store.clock().now()).max(0) / 1_000;
                tracing::warn!(pool = %self.shared.name, model = %member.affinity, cause, "a model cannot be loaded");
                let pool = self.shared.name.to_string();
                metrics::counter!("windlass_pool_load_failures_total", "pool" => pool).increment(1);
                let words =
                    format!("{} could not be loaded: {cause}; it is tried again in {wait_s} s", member.affinity);
                self.tell(&jobs, None, words).await;
                self.give_back(worker, &jobs).await?;
                return Ok(false);
            }
            self.tell(&jobs, Some(JobState::Working), format!("{} is loaded", member.affinity)).await;
        }
        let in_use = self.shared.in_use(&member.affinity);
        let _used = in_use.read().await;
        let endpoint =
            self.store.runtime(self.shared.tenant, &member.runtime).await?.and_then(|runtime| runtime.endpoint);
        let Some(endpoint) = endpoint else {
            self.shared.member(&member.affinity, |state| state.state = "idle".into());
            self.give_back(worker, &jobs).await?;
            return Ok(true);
        };
        let posted = jobs.iter().map(|job| self.one(worker, &endpoint, job));
        for settled in join_all(posted).await {
            settled?;
        }
        holding.used_at = Some(Instant::now());
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

    /// Posts one job and settles it.
    async fn one(&self, worker: &Worker, endpoint: &str, job: &ClaimedJob) -> Result<(), StoreError> {
        let canceled = CancellationToken::new();
        worker.under_way.lock().expect("nobody panics with the map in hand").insert(job.id, canceled.clone());
        let end = tokio::select! {
            end = post(&self.http, &self.relay, endpoint, &self.spec.handler, job) => end,
            () = canceled.cancelled() => End::Cancel,
        };
        worker.under_way.lock().expect("nobody panics with the map in hand").remove(&job.id);
        let outcome = Settle { job: job.id, epoch: job.epoch, end };
        self.store.settle(self.shared.tenant, worker.id, vec![outcome]).await.map(drop)
    }

    async fn give_back(&self, worker: &Worker, jobs: &[ClaimedJob]) -> Result<(), StoreError> {
        let outcomes = jobs.iter().map(|job| Settle { job: job.id, epoch: job.epoch, end: End::Release });
        self.store.settle(self.shared.tenant, worker.id, outcomes.collect()).await.map(drop)
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

    /// Brings a member's runtime up in this slot, in the place of the one that is there.
    async fn load(&self, holding: &mut Holding, member: &Member) -> Result<(), String> {
        if let Some(before) = holding.member.take() {
            self.unload(&before).await?;
        }
        let began = Instant::now();
        self.shared.reserve(&member.affinity, self.number, self.store.clock().now());
        self.operate(member, OperationKind::Start).await?;
        self.until_well(member).await?;
        holding.member = Some(member.clone());
        holding.used_at = Some(Instant::now());
        let took = began.elapsed();
        let pool = self.shared.name.to_string();
        metrics::histogram!("windlass_pool_load_seconds", "pool" => pool).record(took.as_secs_f64());
        self.shared.change(|state| {
            state.loads += 1;
            state.load_ms += took.as_millis() as u64;
        });
        self.loaded(member);
        Ok(())
    }

    fn loaded(&self, member: &Member) {
        self.shared.member(&member.affinity, |state| {
            state.state = "loaded".into();
            state.slot = Some(self.number);
            state.since = Some(self.store.clock().now().micros());
            state.failures = 0;
            state.backoff_until = None;
            state.cause = None;
        });
    }

    /// Takes a runtime down once nobody posts to it.
    async fn unload(&self, member: &Member) -> Result<(), String> {
        let in_use = self.shared.in_use(&member.affinity);
        let _alone = in_use.write().await;
        self.shared.member(&member.affinity, |state| {
            state.state = "idle".into();
            state.slot = None;
        });
        self.operate(member, OperationKind::Stop).await
    }

    async fn operate(&self, member: &Member, kind: OperationKind) -> Result<(), String> {
        let new = NewOperation {
            kind,
            source: OperationSource::AutoScale,
            source_ref: Some(format!("pool {}", self.shared.name)),
            image: None,
            actor: format!("pool {}", self.shared.name),
            depth: 0,
        };
        let told = |error: StoreError| error.to_string();
        let requested = self.store.request_operation(self.shared.tenant, &member.runtime, new).await.map_err(told)?;
        let operation = match requested {
            Requested::Accepted { operation, .. } => operation,
            Requested::Refused { message, .. } => return Err(message),
            Requested::NotFound => return Err(format!("the runtime {} is not declared", member.runtime)),
            Requested::NoNode => return Err("no node drives a Docker engine".into()),
        };
        loop {
            let line = self.store.operation(self.shared.tenant, operation).await.map_err(told)?;
            match line.and_then(|line| Some((line.outcome?, line.error_code, line.error_message))) {
                Some((Outcome::Success, _, _)) => return Ok(()),
                Some((Outcome::Failure, code, message)) => {
                    let code = code.map_or("internal_error", |code| code.as_str());
                    return Err(format!("{code}: {}", message.unwrap_or_default()));
                }
                None => tokio::time::sleep(LOOK).await,
            }
        }
    }

    async fn until_well(&self, member: &Member) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(RUNTIME_LOAD_S);
        while Instant::now() < deadline {
            let runtime = self.store.runtime(self.shared.tenant, &member.runtime).await;
            let runtime = runtime.map_err(|error| error.to_string())?;
            let runtime = runtime.ok_or_else(|| format!("the runtime {} is gone", member.runtime))?;
            match runtime.health.map(|health| (health.status, health.details)) {
                Some((HealthStatus::Healthy, _)) => return Ok(()),
                Some((status, details)) if status.is_end() => return Err(format!("{}: {details}", status.as_str())),
                _ => tokio::time::sleep(LOOK).await,
            }
        }
        Err(format!("it was not well after {RUNTIME_LOAD_S} s"))
    }

    /// Notices that the runtime went by itself, and stops one that has had nothing to do for long.
    async fn look_after(&self, holding: &mut Holding) -> Result<(), StoreError> {
        let Some(member) = holding.member.clone() else { return Ok(()) };
        let runtime = self.store.runtime(self.shared.tenant, &member.runtime).await?;
        if !runtime.is_some_and(|runtime| runtime.status == RuntimeStatus::Running) {
            self.shared.member(&member.affinity, |state| {
                state.state = "idle".into();
                state.slot = None;
            });
            holding.member = None;
            return Ok(());
        }
        let idle = holding.used_at.is_some_and(|at| {
            self.spec.idle_stop_s.is_some_and(|seconds| at.elapsed() >= Duration::from_secs(seconds as u64))
        });
        if idle && !self.slot.pinned {
            holding.member = None;
            if let Err(cause) = self.unload(&member).await {
                tracing::warn!(pool = %self.shared.name, model = %member.affinity, cause, "an idle model stays up");
            }
        }
        Ok(())
    }
}
