//! Starts and stops the background tasks of one node.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use domain::JobId;
use domain::address::Allowed;
use domain::limits::{
    ABANDONED_RETENTION_DEFAULT_S, DEAD_LETTER_RETENTION_DEFAULT_S, HISTORY_RETENTION_DEFAULT_S, READY_WRITE_AGE_MS,
    TIMELINE_RETENTION_S, TRIGGER_DEPTH_DEFAULT,
};
use futures_util::FutureExt;
use store::Store;
use store::queue::artifacts::Blobs;
use store::runtimes::Runtime;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::fleet::scan_subjects::ScanSubjects;
use crate::heartbeat::{Heartbeat, repair_clock_step};
use crate::outbound::Outbound;
use crate::prune::Prune;
use crate::queue::check_counters::CheckCounters;
use crate::queue::collect_artifact_garbage::CollectArtifactGarbage;
use crate::queue::fail_overdue_jobs::FailOverdueJobs;
use crate::queue::fold_counters::FoldCounters;
use crate::queue::poll_ready_queues::PollReadyQueues;
use crate::queue::promote_due::PromoteDue;
use crate::queue::relay::Relay;
use crate::queue::repair_parked_jobs::RepairParkedJobs;
use crate::queue::sweep_calls::SweepCalls;
use crate::queue::sweep_leases::SweepLeases;
use crate::runtimes::driver::Follow;
use crate::runtimes::logs;
use crate::runtimes::logs::{LogStream, LogsError, ServeLogs};
use crate::runtimes::pool::RunPools;
use crate::runtimes::run_batches::RunBatches;
use crate::runtimes::{OperateRuntimes, RuntimeNode, RuntimeOptions, WatchRuntimes};
use crate::signals::fold_figures::FoldFigures;
use crate::signals::group_failures::GroupFailures;
use crate::signals::watch_ttfs::WatchTtfs;
use crate::task::{Task, TaskStatus, run_until};
use crate::triggers::deliver::Deliver;
use crate::triggers::dispatch_outbox::{DispatchOutbox, Scripts};
use crate::triggers::fire_schedules::FireSchedules;
use crate::triggers::scripting::ScriptRunner;
use crate::triggers::work_queues::WorkQueues;
use crate::workflows::resolve_waits::ResolveWaits;
use crate::workflows::stop_runs::StopRuns;

#[derive(Clone)]
pub struct EngineOptions {
    pub history_retention_s: i64,
    pub timeline_retention_s: i64,
    /// PostgreSQL only: a direct connection that bypasses any pooler, for LISTEN/NOTIFY between nodes.
    pub direct_url: Option<String>,
    /// Where large artifacts and the files of batches are stored. Without it no batch runs.
    pub blobs: Option<Blobs>,
    /// The addresses that deliveries and other outbound calls may reach.
    pub allowed: Allowed,
    /// Retention of results whose caller disconnected.
    pub abandoned_retention_s: i64,
    /// Maximum length of a chain in which one trigger causes the next.
    pub max_trigger_depth: i32,
    /// Retention of resolved dead letters.
    pub dead_letter_retention_s: i64,
    /// Set if this node drives a Docker engine.
    pub runtimes: Option<RuntimeOptions>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            history_retention_s: HISTORY_RETENTION_DEFAULT_S,
            timeline_retention_s: TIMELINE_RETENTION_S,
            direct_url: None,
            blobs: None,
            allowed: Allowed::default(),
            abandoned_retention_s: ABANDONED_RETENTION_DEFAULT_S,
            max_trigger_depth: TRIGGER_DEPTH_DEFAULT,
            dead_letter_retention_s: DEAD_LETTER_RETENTION_DEFAULT_S,
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
    /// Starts all tasks. The schema must be up to date.
    pub async fn start(store: Store, options: EngineOptions) -> Result<Self, store::StoreError> {
        repair_clock_step(&store).await?;
        if store.hold_retention_after_a_gap().await? {
            tracing::warn!(
                "no node has served for more than a day, or the clock is ahead; nothing is deleted by age for an hour"
            );
        }
        // The first heartbeat must detect an outage before any task evaluates a lease.
        store.first_beat().await?;
        let mut engine = Self::idle(store, options.allowed);
        engine.run(Heartbeat);
        engine.run(SweepLeases);
        engine.run(FailOverdueJobs);
        engine.run(RepairParkedJobs);
        engine.run(PromoteDue);
        engine.run(StopRuns);
        engine.run(ResolveWaits);
        engine.run(ScanSubjects);
        engine.run(FoldCounters);
        engine.run(CheckCounters::default());
        let scripts = Scripts::new(engine.script_runner(), engine.tracker.clone());
        engine.run(DispatchOutbox { max_depth: options.max_trigger_depth, scripts });
        engine.run(WorkQueues::new(engine.tracker.clone(), engine.stop.clone()));
        engine.run(FireSchedules);
        engine.run(GroupFailures);
        engine.run(FoldFigures);
        engine.run(WatchTtfs);
        engine.run(Prune {
            last_reading: Mutex::default(),
            history_retention_s: options.history_retention_s,
            timeline_retention_s: options.timeline_retention_s,
            dead_letter_retention_s: options.dead_letter_retention_s,
        });
        engine.run(SweepCalls { retention_s: options.abandoned_retention_s });
        engine.run(Deliver {
            outbound: engine.outbound.clone(),
            tracker: engine.tracker.clone(),
            stop: engine.stop.clone(),
            in_flight: Arc::default(),
        });
        if let Some(options) = options.runtimes {
            engine.drive(options).await?;
        }
        if let Some(blobs) = options.blobs {
            engine.run(RunBatches::new(blobs.clone()));
            engine.run(CollectArtifactGarbage { blobs });
        }
        if let Some(url) = options.direct_url {
            engine.relay_notifications(url);
        }
        engine.poll_changes_of_other_nodes();
        Ok(engine)
    }

    /// Starts only the tasks that drive a Docker engine. Leases, schedules, webhooks and the rest run on the servers.
    pub async fn start_agent(
        store: Store,
        options: RuntimeOptions,
        direct_url: String,
    ) -> Result<Self, store::StoreError> {
        let mut engine = Self::idle(store, Allowed::default());
        engine.drive(options).await?;
        engine.relay_notifications(direct_url);
        engine.poll_changes_of_other_nodes();
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

    /// Starts the tasks that run operations, monitor containers and run pools on this node.
    async fn drive(&mut self, options: RuntimeOptions) -> Result<(), store::StoreError> {
        let (tracker, stop) = (self.tracker.clone(), self.stop.clone());
        let node = RuntimeNode::open(&self.store, options, tracker, stop).await?;
        self.run(OperateRuntimes::new(node.clone()));
        self.run(WatchRuntimes::new(node.clone()));
        // SQLite has a single node, so no other node requests logs.
        if self.store.is_postgres() {
            self.run(ServeLogs::new(node.clone()));
        }
        self.spawn_until_stopped(node.clone().follow_events(self.store.clone()));
        let relay = self.relay.clone();
        self.run(RunPools::new(&node, relay, self.tracker.clone(), self.stop.clone()));
        let (store, name, stop) = (self.store.clone(), node.name().to_owned(), self.stop.clone());
        self.tracker.spawn(async move {
            stop.cancelled().await;
            // A release lets another node take over immediately. Without it, the lease must expire first.
            if let Err(error) = store.release_pools(&name).await {
                tracing::debug!(%error, "failed to release pools");
            }
        });
        self.runtimes = Some(node);
        Ok(())
    }

    /// Receives the notifications of other nodes, over a connection that bypasses any pooler.
    fn relay_notifications(&self, url: String) {
        let store = self.store.clone();
        self.spawn_until_stopped(async move {
            // The future ends only by a panic.
            while AssertUnwindSafe(store.relay_hints(&url)).catch_unwind().await.is_err() {
                tracing::error!("the notification listener panicked and is restarted");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
    }

    /// Polls for changes by other nodes, because notifications can be lost. SQLite has no other nodes.
    fn poll_changes_of_other_nodes(&mut self) {
        if self.store.is_postgres() {
            self.run(PollReadyQueues);
        }
    }

    fn run<T: Task>(&mut self, task: T) {
        let (every_ms, last_success_at) = (T::EVERY.as_millis() as u64, self.store.clock().now());
        let last_success = Some(Instant::now());
        let status = TaskStatus { name: T::NAME, every_ms, last_success_at, last_success, ..TaskStatus::default() };
        let status = Arc::new(Mutex::new(status));
        self.statuses.push(status.clone());
        self.tracker.spawn(run_until(task, self.store.clone(), status, self.stop.clone()));
    }

    /// Records in the background that the caller of a synchronous call disconnected. `Drop` calls this and cannot wait.
    pub fn abandon_call(&self, job: JobId) {
        let store = self.store.clone();
        self.tracker.spawn(async move {
            if let Err(error) = store.abandon_call(job).await {
                // The caller's registration expires by itself.
                tracing::warn!(%job, %error, "failed to record an abandoned call");
            }
        });
    }

    /// Runs trigger scripts.
    pub fn script_runner(&self) -> ScriptRunner {
        ScriptRunner { store: self.store.clone(), outbound: self.outbound.clone(), stop: self.stop.clone() }
    }

    /// Streams the log of a runtime's container from the last `tail` lines on, from whichever node it runs on.
    pub async fn runtime_logs(&self, runtime: &Runtime, tail: i64, follow: Follow) -> Result<LogStream, LogsError> {
        match (&self.runtimes, runtime.node.as_deref()) {
            (Some(here), node) if node.is_none_or(|node| node == here.name()) => here.logs(runtime, tail, follow).await,
            (_, Some(node)) => {
                let new = logs::request_to(node, runtime, tail, follow)?;
                Ok(logs::read(&self.store, &self.tracker, &self.stop, new).await)
            }
            (_, None) => Err(LogsError::NoNode),
        }
    }

    /// Streams partial results of synchronous calls.
    pub fn relay(&self) -> &Relay {
        &self.relay
    }

    /// The client for requests to URLs that users supply.
    pub fn outbound(&self) -> &Outbound {
        &self.outbound
    }

    /// Runs a future until it completes or the engine stops.
    pub fn spawn_until_stopped(&self, work: impl Future<Output = ()> + Send + 'static) {
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
        let read = |status: &Arc<Mutex<TaskStatus>>| status.lock().expect("lock poisoned").clone();
        self.statuses.iter().map(read).collect()
    }

    /// False if the last heartbeat could not be written, or none was written lately. The cause, such as a full disk or a
    /// lock that another program holds, affects all writes.
    pub fn accepts_writes(&self) -> bool {
        let max_age = Duration::from_millis(READY_WRITE_AGE_MS as u64);
        let is_recent = |last: Instant| last.elapsed() < max_age;
        let accepts = |task: TaskStatus| task.last_error.is_none() && task.last_success.is_some_and(is_recent);
        self.tasks().into_iter().find(|task| task.name == Heartbeat::NAME).is_some_and(accepts)
    }

    /// Stops the tasks and waits up to five seconds for them.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.tracker.close();
        let _ = tokio::time::timeout(Duration::from_secs(5), self.tracker.wait()).await;
    }
}

/// Without a handle, the tasks must not continue.
impl Drop for Engine {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
