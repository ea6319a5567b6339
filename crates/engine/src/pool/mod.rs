//! Pools on this node: a few slots that many runtimes take turns in (R7).
//!
//! A slot is a worker like any other. What it is given next follows Q6: the affinity it holds, the oldest other past the
//! starvation bound. When that is another affinity than the one it holds, the slot stops its runtime, starts the other and
//! waits until it is well; the jobs in its hands are `loading` meanwhile. Then it posts them to the runtime's endpoint.
//! Nothing in the claim knows of pools.

mod handle;
mod slot;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use domain::limits::{MODEL_BACKOFF_MAX_S, MODEL_BACKOFF_S};
use domain::{Label, Name, TenantId, Time};
use store::hints::Topic;
use store::pools::Pool;
use store::pools::codec::{MemberState, PoolState};
use store::runtimes::nodes::NodeOffer;
use store::{Store, StoreError};
use tokio::sync::RwLock;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(crate) use handle::ANSWERED;

use crate::relay::Relay;
use crate::runtime::RuntimeNode;
use crate::task::{Done, Task};

/// Runs the pools that this node has taken.
pub(crate) struct RunPools {
    node: String,
    offer: NodeOffer,
    tracker: TaskTracker,
    stop: CancellationToken,
    http: reqwest::Client,
    relay: Relay,
    running: Mutex<HashMap<(TenantId, Name), Running>>,
}

/// A pool as it was declared when its slots were started.
struct Running {
    declared_at: Time,
    stop: CancellationToken,
    state: Arc<Shared>,
    slots: Vec<JoinHandle<()>>,
}

impl Running {
    /// A slot that ended without having been told to has panicked; its pool is begun anew.
    fn goes_on(&self) -> bool {
        let panicked = self.slots.iter().any(JoinHandle::is_finished) && !self.stop.is_cancelled();
        if panicked {
            metrics::counter!("windlass_task_errors_total", "task" => RunPools::NAME).increment(1);
            tracing::error!(pool = %self.state.name, "a slot panicked; its pool begins anew");
        }
        !panicked
    }
}

/// What the slots of one pool know together.
struct Shared {
    tenant: TenantId,
    name: Name,
    state: Mutex<PoolState>,
    /// Whoever posts to a runtime holds it for reading, whoever takes it down for writing.
    in_use: Mutex<HashMap<Label, Arc<RwLock<()>>>>,
    /// When each model was last posted to, by whichever slot.
    used_at: Mutex<HashMap<Label, Instant>>,
    changed: Mutex<bool>,
}

impl RunPools {
    pub(crate) fn new(node: &RuntimeNode, relay: Relay, tracker: TaskTracker, stop: CancellationToken) -> Self {
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(Duration::from_secs(5))
            .tls_backend_preconfigured(crate::outbound::public_roots())
            .build()
            .expect("the settings above make a client");
        let (node, offer) = (node.name().to_owned(), node.offer().clone());
        Self { node, offer, tracker, stop, http, relay, running: Mutex::default() }
    }
}

impl Task for RunPools {
    const NAME: &'static str = "run_pools";
    const EVERY: Duration = Duration::from_secs(1);
    const WAKE: Option<Topic> = Some(Topic::Runtimes);

    async fn run(&self, store: &Store) -> Result<Done, StoreError> {
        if self.stop.is_cancelled() {
            return Ok(Done::nothing());
        }
        let pools = store.take_pools(&self.node, &self.offer).await?;
        let mut begun = 0;
        let mut unsaved = Vec::new();
        {
            let mut running = self.running.lock().expect("nobody panics with the map in hand");
            let declared: HashMap<(TenantId, Name), Time> =
                pools.iter().map(|pool| ((pool.tenant, pool.name.clone()), pool.updated_at)).collect();
            // A pool that is gone, is another's now, or is declared otherwise: its slots let go.
            running.retain(|key, run| {
                let stays = declared.get(key) == Some(&run.declared_at) && run.goes_on();
                if !stays {
                    run.stop.cancel();
                }
                stays
            });
            for pool in pools {
                let key = (pool.tenant, pool.name.clone());
                if let std::collections::hash_map::Entry::Vacant(place) = running.entry(key) {
                    place.insert(self.begin(store, pool));
                    begun += 1;
                }
            }
            for run in running.values() {
                if std::mem::take(&mut *run.state.changed.lock().expect("nobody panics with the mark in hand")) {
                    unsaved.push(run.state.clone());
                }
            }
        }
        for shared in unsaved {
            let state = shared.read();
            store.save_pool_state(shared.tenant, &shared.name, &self.node, &state).await?;
        }
        Ok(if begun > 0 { Done::work(format!("{begun} pools begun")) } else { Done::nothing() })
    }
}

impl RunPools {
    fn begin(&self, store: &Store, pool: Pool) -> Running {
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
        let shared = Arc::new(Shared {
            tenant: pool.tenant,
            name: pool.name.clone(),
            state: Mutex::new(state),
            in_use: Mutex::default(),
            used_at: Mutex::default(),
            changed: Mutex::new(true),
        });
        let mut slots = Vec::new();
        for (number, slot) in pool.spec.slots().into_iter().enumerate() {
            let run = slot::Run {
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
        Running { declared_at, stop, state: shared, slots }
    }
}

/// What a slot that wants a model finds.
enum Reserved {
    /// It is this slot's to load.
    Here,
    Up,
    /// Another slot is loading it.
    Coming,
}

impl Shared {
    fn read(&self) -> PoolState {
        self.state.lock().expect("nobody panics with the state in hand").clone()
    }

    fn change(&self, change: impl FnOnce(&mut PoolState)) {
        change(&mut self.state.lock().expect("nobody panics with the state in hand"));
        *self.changed.lock().expect("nobody panics with the mark in hand") = true;
    }

    fn member(&self, affinity: &Label, change: impl FnOnce(&mut MemberState)) {
        self.change(|state| change(state.members.entry(affinity.to_string()).or_default()));
    }

    fn in_use(&self, affinity: &Label) -> Arc<RwLock<()>> {
        let mut in_use = self.in_use.lock().expect("nobody panics with the map in hand");
        in_use.entry(affinity.clone()).or_default().clone()
    }

    fn used(&self, affinity: &Label) {
        let mut used_at = self.used_at.lock().expect("nobody panics with the map in hand");
        used_at.insert(affinity.clone(), Instant::now());
    }

    fn used_at(&self, affinity: &Label) -> Option<Instant> {
        self.used_at.lock().expect("nobody panics with the map in hand").get(affinity).copied()
    }

    /// A slot has it no more; what another has by now is left to that one.
    fn leave(&self, affinity: &Label, slot: usize) {
        self.member(affinity, |member| {
            if member.slot.is_none_or(|at| at == slot) {
                member.state = "idle".into();
                member.slot = None;
            }
        });
    }

    /// The slot that has it up or is bringing it up, if one is.
    fn slot_of(&self, affinity: &Label) -> Option<usize> {
        let state = self.state.lock().expect("nobody panics with the state in hand");
        state.members.get(affinity.as_str()).filter(|member| member.state != "idle").and_then(|member| member.slot)
    }

    /// Gives a model that is nowhere up to the slot that asks first.
    fn reserve(&self, affinity: &Label, slot: usize, now: Time) -> Reserved {
        let mut reserved = Reserved::Here;
        self.member(affinity, |member| match member.state.as_str() {
            "loaded" => reserved = Reserved::Up,
            "loading" if member.slot != Some(slot) => reserved = Reserved::Coming,
            _ => {
                member.state = "loading".into();
                member.slot = Some(slot);
                member.since = Some(now.micros());
            }
        });
        reserved
    }

    /// Models that are left alone for now, with the time until then.
    fn backing_off(&self, now: Time) -> BTreeMap<String, Time> {
        let state = self.state.lock().expect("nobody panics with the state in hand");
        let until = |(affinity, member): (&String, &MemberState)| {
            let until = Time::from_micros(member.backoff_until?);
            (until > now).then(|| (affinity.clone(), until))
        };
        state.members.iter().filter_map(until).collect()
    }

    /// Leaves a model alone for a while.
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
