//! Starts the tasks on a store and stops them again.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::JobId;
use domain::address::Allowed;
use domain::limits::{
    ABANDONED_RETENTION_S_DEFAULT, DEAD_LETTER_RETENTION_S_DEFAULT, HISTORY_RETENTION_S_DEFAULT, TIMELINE_RETENTION_S,
    TRIGGER_DEPTH_DEFAULT,
};
use futures_util::FutureExt;
use store::Store;
use store::artifacts::Blobs;
use store::runtimes::Runtime;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::outbound::Outbound;
use crate::pool::RunPools;
use crate::relay::Relay;
use crate::runtime::driver::Follow;
use crate::runtime::logs::{self, LogFlow, LogsError, ServeLogs};
use crate::runtime::{OperateRuntimes, RuntimeNode, RuntimeOptions, WatchRuntimes};
use crate::scripting::Stage;
use crate::task::{Task, TaskStatus, run_until};
use crate::tasks::beat::{Beat, mend_clock};
use crate::tasks::check_counters::CheckCounters;
use crate::tasks::collect_garbage::CollectGarbage;
use crate::tasks::deliver::Deliver;
use crate::tasks::dispatch_outbox::{DispatchOutbox, Scripts};
use crate::tasks::fire_schedules::FireSchedules;
use crate::tasks::fold_counters::FoldCounters;
use crate::tasks::fold_figures::FoldFigures;
use crate::tasks::learn_failures::LearnFailures;
use crate::tasks::promote_due::PromoteDue;
use crate::tasks::prune::Prune;
use crate::tasks::run_batches::RunBatches;
use crate::tasks::scan_subjects::ScanSubjects;
use crate::tasks::sweep_calls::SweepCalls;
use crate::tasks::sweep_leases::SweepLeases;
use crate::tasks::unpark_forgotten::UnparkForgotten;
use crate::tasks::wake_waiting::WakeWaiting;
use crate::tasks::watch_ttfs::WatchTtfs;
use crate::tasks::work_queues::WorkQueues;

#[derive(Clone)]
pub struct EngineOptions {
    pub history_retention_s: i64,
    pub timeline_retention_s: i64,
    /// A connection of its own for hints between nodes, past any pooler; PostgreSQL only.
    pub direct_url: Option<String>,
    /// Where large artifacts and the files of batches are; without it no batch runs.
    pub blobs: Option<Blobs>,
    /// What deliveries and other outbound calls may reach.
    pub allowed: Allowed,
    /// How long answers to calls are kept whose caller was gone.
    pub abandoned_retention_s: i64,
    /// How often one thing may lead to another before it is taken for a loop.
    pub max_trigger_depth: i32,
    /// How long resolved dead letters are kept.
    pub dead_letter_retention_s: i64,
    /// How this node drives a Docker engine, if it drives one.
    pub runtimes: Option<RuntimeOptions>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            history_retention_s: HISTORY_RETENTION_S_DEFAULT,
            timeline_retention_s: TIMELINE_RETENTION_S,
            direct_url: None,
            blobs: None,
            allowed: Allowed::default(),
            abandoned_retention_s: ABANDONED_RETENTION_S_DEFAULT,
            max_trigger_depth: TRIGGER_DEPTH_DEFAULT,
            dead_letter_retention_s: DEAD_LETTER_RETENTION_S_DEFAULT,
            runtimes: None,
        }
    }
}

/// The running tasks of one node.
pub struct Engine {
    store: Store,
    statuses: Vec<Arc<Mutex<TaskStatus>>>,
    tracker: TaskTracker,
    stop: CancellationToken,
    outbound: Outbound,
    runtimes: Option<RuntimeNode>,
    relay: Relay,
}

impl Engine {
    /// Starts every task. The schema must be up to date.
    pub async fn start(store: Store, options: EngineOptions) -> Result<Self, store::StoreError> {
        mend_clock(&store).await?;
        // The first beat notices an outage before anything judges a lease.
        store.first_beat().await?;
        let mut engine = Self::idle(store, options.allowed);
        engine.run(Beat);
        engine.run(SweepLeases);
        engine.run(UnparkForgotten);
        engine.run(PromoteDue);
        engine.run(ScanSubjects);
        engine.run(FoldCounters);
        engine.run(CheckCounters::default());
        let scripts = Scripts::new(engine.stage(), engine.tracker.clone());
        engine.run(DispatchOutbox { max_depth: options.max_trigger_depth, scripts });
        engine.run(WorkQueues::new(engine.tracker.clone(), engine.stop.clone()));
        engine.run(FireSchedules);
        engine.run(LearnFailures);
        engine.run(FoldFigures);
        engine.run(WatchTtfs);
        engine.run(Prune {
            history_retention_s: options.history_retention_s,
            timeline_retention_s: options.timeline_retention_s,
            dead_letter_retention_s: options.dead_letter_retention_s,
        });
        engine.run(SweepCalls { retention_s: options.abandoned_retention_s });
        engine.run(Deliver {
            outbound: engine.outbound.clone(),
            tracker: engine.tracker.clone(),
            stop: engine.stop.clone(),
            under_way: Arc::default(),
        });
        if let Some(options) = options.runtimes {
            engine.drive(options).await?;
        }
        if let Some(blobs) = options.blobs {
            engine.run(RunBatches::new(blobs.clone()));
            engine.run(CollectGarbage { blobs });
        }
        if let Some(url) = options.direct_url {
            engine.hear_others(url);
        }
        engine.watch_others();
        Ok(engine)
    }

    /// Drives a Docker engine and does nothing else: leases, schedules, webhooks and the rest are the servers'.
    pub async fn start_agent(
        store: Store,
        options: RuntimeOptions,
        direct_url: String,
    ) -> Result<Self, store::StoreError> {
        let mut engine = Self::idle(store, Allowed::default());
        engine.drive(options).await?;
        engine.hear_others(direct_url);
        engine.watch_others();
        Ok(engine)
    }

    fn idle(store: Store, allowed: Allowed) -> Self {
        Self {
            store,
            statuses: Vec::new(),
            tracker: TaskTracker::new(),
            stop: CancellationToken::new(),
            outbound: Outbound::new(allowed),
            runtimes: None,
            relay: Relay::default(),
        }
    }

    /// Takes this node's operations on, watches its containers and runs pools.
    async fn drive(&mut self, options: RuntimeOptions) -> Result<(), store::StoreError> {
        let (tracker, stop) = (self.tracker.clone(), self.stop.clone());
        let node = RuntimeNode::open(&self.store, options, tracker, stop).await?;
        self.run(OperateRuntimes::new(node.clone()));
        self.run(WatchRuntimes::new(node.clone()));
        // On SQLite there is no other node that could ask.
        if self.store.is_postgres() {
            self.run(ServeLogs::new(node.clone()));
        }
        self.alongside(node.clone().follow_events(self.store.clone()));
        let relay = self.relay.clone();
        self.run(RunPools::new(&node, relay, self.tracker.clone(), self.stop.clone()));
        let (store, name, stop) = (self.store.clone(), node.name().to_owned(), self.stop.clone());
        self.tracker.spawn(async move {
            stop.cancelled().await;
            // Another node may go on at once; if this cannot be said, the lease runs out.
            if let Err(error) = store.leave_pools(&name).await {
                tracing::debug!(%error, "pools could not be left");
            }
        });
        self.runtimes = Some(node);
        Ok(())
    }

    /// Hints of other nodes are heard, past any pooler.
    fn hear_others(&self, url: String) {
        let store = self.store.clone();
        self.alongside(async move {
            // It ends by a panic alone.
            while AssertUnwindSafe(store.relay_hints(&url)).catch_unwind().await.is_err() {
                tracing::error!("what hears the hints of other nodes panicked and begins anew");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
    }

    /// What others brought about is found without a hint, too. On SQLite there are no others.
    fn watch_others(&mut self) {
        if self.store.is_postgres() {
            self.run(WakeWaiting);
        }
    }

    fn run<T: Task>(&mut self, task: T) {
        let (every_ms, last_success_at) = (T::EVERY.as_millis() as u64, self.store.clock().now());
        let status = TaskStatus { name: T::NAME, every_ms, last_success_at, ..TaskStatus::default() };
        let status = Arc::new(Mutex::new(status));
        self.statuses.push(status.clone());
        self.tracker.spawn(run_until(task, self.store.clone(), status, self.stop.clone()));
    }

    /// A caller went away before its answer came. Says so in the background: whoever drops a request cannot wait.
    pub fn abandon_call(&self, job: JobId) {
        let store = self.store.clone();
        self.tracker.spawn(async move {
            if let Err(error) = store.abandon_call(job).await {
                // The note that somebody waits runs out by itself.
                tracing::warn!(%job, %error, "an abandoned call could not be noted");
            }
        });
    }

    /// Where scripts run.
    pub fn stage(&self) -> Stage {
        Stage { store: self.store.clone(), outbound: self.outbound.clone(), stop: self.stop.clone() }
    }

    /// What the runtime's container wrote, from the last `tail` lines on, whichever node it is on.
    pub async fn runtime_logs(&self, runtime: &Runtime, tail: i64, follow: Follow) -> Result<LogFlow, LogsError> {
        match (&self.runtimes, runtime.node.as_deref()) {
            (Some(here), node) if node.is_none_or(|node| node == here.name()) => here.logs(runtime, tail, follow).await,
            (_, Some(node)) => {
                let new = logs::asked_of(node, runtime, tail, follow)?;
                Ok(logs::read(&self.store, &self.tracker, &self.stop, new).await)
            }
            (_, None) => Err(LogsError::Nowhere),
        }
    }

    /// Where answers can be heard while they are given.
    pub fn relay(&self) -> &Relay {
        &self.relay
    }

    /// For calls that a user's URL causes.
    pub fn outbound(&self) -> &Outbound {
        &self.outbound
    }

    /// Runs something beside the tasks until the engine stops.
    pub fn alongside(&self, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tracker.spawn(async move {
            tokio::select! {
                () = work => {}
                () = stop.cancelled() => {}
            }
        });
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    pub fn tasks(&self) -> Vec<TaskStatus> {
        let read =
            |status: &Arc<Mutex<TaskStatus>>| status.lock().expect("nobody panics with a status in hand").clone();
        self.statuses.iter().map(read).collect()
    }

    /// Whether the last beat was written. What refuses that, as a full disk, refuses every write.
    pub fn beats(&self) -> bool {
        self.tasks().iter().all(|task| task.name != Beat::NAME || task.last_error.is_none())
    }

    /// Stops the tasks and waits for those under way, but not for long.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.tracker.close();
        let _ = tokio::time::timeout(Duration::from_secs(5), self.tracker.wait()).await;
    }
}

/// What nobody has a handle on any more does not run on.
impl Drop for Engine {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
