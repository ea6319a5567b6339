//! Pools on this node: many runtimes share a few slots.
//!
//! A slot is an ordinary worker. The claim order selects its jobs: the loaded affinity, or the oldest other one past
//! the starvation bound. For another affinity the slot stops its runtime, starts the other and waits until it is
//! healthy, while the claimed jobs are in state `loading`. Then it posts the jobs to the runtime's endpoint. The claim
//! itself knows nothing of pools.

mod handle;
mod slot;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use domain::limits::{MODEL_BACKOFF_MAX_S, MODEL_BACKOFF_S};
use domain::{Label, Name, TenantId, Time};
use store::db::notifier::Topic;
use store::runtimes::nodes::NodeOffer;
use store::runtimes::pools::Pool;
use store::runtimes::pools::codec::{MemberState, PoolState};
use store::{Store, StoreError};
use tokio::sync::RwLock;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(crate) use handle::ANSWERED;

use crate::queue::relay::Relay;
use crate::runtimes::RuntimeNode;
use crate::task::{Task, TaskOutcome};

/// Runs the pools that this node has leased.
pub(crate) struct RunPools {
    node: String,
    offer: NodeOffer,
    tracker: TaskTracker,
    stop: CancellationToken,
    http: reqwest::Client,
    relay: Relay,
    running: Mutex<HashMap<(TenantId, Name), RunningPool>>,
}

/// A running pool, as declared when its slots were started.
struct RunningPool {
    declared_at: Time,
    stop: CancellationToken,
    state: Arc<PoolShared>,
    slots: Vec<JoinHandle<()>>,
}

impl RunningPool {
    /// False if a slot panicked. Its pool is then restarted.
    fn is_running(&self) -> bool {
        let panicked = self.slots.iter().any(JoinHandle::is_finished) && !self.stop.is_cancelled();
        if panicked {
            metrics::counter!("windlass_task_errors_total", "task" => RunPools::NAME).increment(1);
            tracing::error!(pool = %self.state.name, "a slot panicked; its pool is restarted");
        }
        !panicked
    }
}

/// State that the slots of one pool share.
struct PoolShared {
    tenant: TenantId,
    name: Name,
    state: Mutex<PoolState>,
    /// Read-locked while jobs are posted to a runtime, write-locked while it is stopped.
    in_use: Mutex<HashMap<Label, Arc<RwLock<()>>>>,
    /// When a job was last posted to each model, by any slot.
    used_at: Mutex<HashMap<Label, Instant>>,
    has_unsaved_changes: Mutex<bool>,
}

impl RunPools {
    pub(crate) fn new(node: &RuntimeNode, relay: Relay, tracker: TaskTracker, stop: CancellationToken) -> Self {
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(Duration::from_secs(5))
            .tls_backend_preconfigured(crate::outbound::public_roots())
            .build()
            .expect("the client settings are valid");
        let (node, offer) = (node.name().to_owned(), node.offer().clone());
        Self { node, offer, tracker, stop, http, relay, running: Mutex::default() }
    }
}

impl Task for RunPools {
    const NAME: &'static str = "run_pools";
    const EVERY: Duration = Duration::from_secs(1);
    const WAKE: Option<Topic> = Some(Topic::Runtimes);

    async fn run(&self, store: &Store) -> Result<TaskOutcome, StoreError> {
        if self.stop.is_cancelled() {
            return Ok(TaskOutcome::nothing());
        }
        let pools = store.lease_pools(&self.node, &self.offer).await?;
        let mut started = 0;
        let mut unsaved = Vec::new();
        {
            let mut running = self.running.lock().expect("lock poisoned");
            let declared: HashMap<(TenantId, Name), Time> =
                pools.iter().map(|pool| ((pool.tenant, pool.name.clone()), pool.updated_at)).collect();
            // Stops the slots of pools that were deleted, leased by another node, or changed.
            running.retain(|key, run| {
                let stays = declared.get(key) == Some(&run.declared_at) && run.is_running();
                if !stays {
                    run.stop.cancel();
                }
                stays
            });
            for pool in pools {
                let key = (pool.tenant, pool.name.clone());
                if let std::collections::hash_map::Entry::Vacant(entry) = running.entry(key) {
                    entry.insert(self.start(store, pool));
                    started += 1;
                }
            }
            for run in running.values() {
                if std::mem::take(&mut *run.state.has_unsaved_changes.lock().expect("lock poisoned")) {
                    unsaved.push(run.state.clone());
                }
            }
        }
        for shared in unsaved {
            let state = shared.read();
            store.save_pool_state(shared.tenant, &shared.name, &self.node, &state).await?;
        }
        let work = || TaskOutcome::work(format!("{started} pools started"));
        Ok(if started > 0 { work() } else { TaskOutcome::nothing() })
    }
}

impl RunPools {
    fn start(&self, store: &Store, pool: Pool) -> RunningPool {
        let stop = self.stop.child_token();
        let declared_at = pool.updated_at;
        let mut state = pool.state.clone();
        let affinities: Vec<String> = pool.spec.members.iter().map(|member| member.affinity.to_string()).collect();
        state.members.retain(|affinity, _| affinities.contains(affinity));
        for affinity in affinities {
            let member = state.members.entry(affinity).or_default();
            member.state = "idle".into();
            member.slot = None;
        }
        let shared = Arc::new(PoolShared {
            tenant: pool.tenant,
            name: pool.name.clone(),
            state: Mutex::new(state),
            in_use: Mutex::default(),
            used_at: Mutex::default(),
            has_unsaved_changes: Mutex::new(true),
        });
        let mut slots = Vec::new();
        for (number, slot) in pool.spec.slots().into_iter().enumerate() {
            let run = slot::SlotRunner {
                store: store.clone(),
                node: self.node.clone(),
                http: self.http.clone(),
                relay: self.relay.clone(),
                spec: pool.spec.clone(),
                slot,
                number,
                shared: shared.clone(),
                stop: stop.clone(),
            };
            slots.push(self.tracker.spawn(run.until_stopped()));
        }
        RunningPool { declared_at, stop, state: shared, slots }
    }
}

/// The result of an attempt to reserve a model for a slot.
enum Reservation {
    /// The slot must load it.
    Granted,
    AlreadyUp,
    /// Another slot is loading it.
    LoadingElsewhere,
}

impl PoolShared {
    fn read(&self) -> PoolState {
        self.state.lock().expect("lock poisoned").clone()
    }

    fn change(&self, change: impl FnOnce(&mut PoolState)) {
        change(&mut self.state.lock().expect("lock poisoned"));
        *self.has_unsaved_changes.lock().expect("lock poisoned") = true;
    }

    fn member(&self, affinity: &Label, change: impl FnOnce(&mut MemberState)) {
        self.change(|state| change(state.members.entry(affinity.to_string()).or_default()));
    }

    fn in_use(&self, affinity: &Label) -> Arc<RwLock<()>> {
        let mut in_use = self.in_use.lock().expect("lock poisoned");
        in_use.entry(affinity.clone()).or_default().clone()
    }

    fn used(&self, affinity: &Label) {
        let mut used_at = self.used_at.lock().expect("lock poisoned");
        used_at.insert(affinity.clone(), Instant::now());
    }

    fn used_at(&self, affinity: &Label) -> Option<Instant> {
        self.used_at.lock().expect("lock poisoned").get(affinity).copied()
    }

    /// Records that a slot no longer has the model, unless another slot has it by now.
    fn release(&self, affinity: &Label, slot: usize) {
        self.member(affinity, |member| {
            if member.slot.is_none_or(|at| at == slot) {
                member.state = "idle".into();
                member.slot = None;
            }
        });
    }

    /// The slot that has the model loaded or is loading it.
    fn slot_of(&self, affinity: &Label) -> Option<usize> {
        let state = self.state.lock().expect("lock poisoned");
        state.members.get(affinity.as_str()).filter(|member| member.state != "idle").and_then(|member| member.slot)
    }

    /// Reserves a model for a slot, unless it is loaded or being loaded elsewhere.
    fn reserve(&self, affinity: &Label, slot: usize, now: Time) -> Reservation {
        let mut reserved = Reservation::Granted;
        self.member(affinity, |member| match member.state.as_str() {
            "loaded" => reserved = Reservation::AlreadyUp,
            "loading" if member.slot != Some(slot) => reserved = Reservation::LoadingElsewhere,
            _ => {
                member.state = "loading".into();
                member.slot = Some(slot);
                member.since = Some(now.micros());
            }
        });
        reserved
    }

    /// Models in backoff, with the end of each backoff.
    fn backing_off(&self, now: Time) -> BTreeMap<String, Time> {
        let state = self.state.lock().expect("lock poisoned");
        let until = |(affinity, member): (&String, &MemberState)| {
            let until = Time::from_micros(member.backoff_until?);
            (until > now).then(|| (affinity.clone(), until))
        };
        state.members.iter().filter_map(until).collect()
    }

    /// Starts or extends the backoff of a model.
    fn back_off(&self, affinity: &Label, cause: &str, now: Time) {
        self.member(affinity, |member| {
            let wait_s = MODEL_BACKOFF_S.saturating_mul(1 << member.failures.min(16)).min(MODEL_BACKOFF_MAX_S);
            member.failures += 1;
            member.state = "idle".into();
            member.slot = None;
            member.backoff_until = Some(now.plus_s(wait_s).micros());
            member.cause = Some(cause.to_owned());
        });
    }
}
