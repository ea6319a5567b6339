//! Claims this node's operations like any worker claims jobs, and runs each in a task of its own.
//!
//! The node keeps a job while it sends heartbeats. The operations of a node that stopped are continued by the next node
//! that drives the Docker engine, or by the node itself after a restart.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use domain::limits::{CONCURRENT_OPERATIONS, NODE_HEARTBEAT_S, OPERATION_LEASE_MS};
use domain::runtimes::OperationCode;
use domain::{Epoch, JobError, JobId, Label, Name, TenantId, WorkerId};
use store::db::notifier::Topic;
use store::queue::claim::Claimed;
use store::queue::settle::{End, Outcome as Settle};
use store::queue::workers::heartbeat::Heartbeat;
use store::queue::workers::register::NewWorker;
use store::runtimes::begin::BeginOutcome;
use store::runtimes::operate::{ContainerChange, OperationEnd};
use store::runtimes::relocate::Relocated;
use store::runtimes::{OperationOutcome, QUEUE};
use store::{Store, StoreError};
use tokio::task::AbortHandle;

use super::operate::perform;
use super::{NodeShared, RuntimeNode};
use crate::task::{Task, TaskOutcome};

/// A worker without operations is removed after this long.
const IDLE: Duration = Duration::from_secs(30);
/// First and longest pause before the job of an operation whose outcome could not be recorded is released.
const RELEASE_PAUSE: Duration = Duration::from_millis(200);
const RELEASE_PAUSE_MAX: Duration = Duration::from_secs(10);
/// Three heartbeats per lease.
const HEARTBEAT: Duration = Duration::from_millis(OPERATION_LEASE_MS as u64 / 3);

pub(crate) struct OperateRuntimes {
    node: RuntimeNode,
    state: tokio::sync::Mutex<WorkerState>,
    running: Arc<Mutex<HashMap<JobId, (WorkerId, AbortHandle)>>>,
}

#[derive(Default)]
struct WorkerState {
    workers: HashMap<TenantId, RegisteredWorker>,
    heartbeat_at: Option<Instant>,
}

struct RegisteredWorker {
    id: WorkerId,
    heartbeat_at: Instant,
    used_at: Instant,
}

impl OperateRuntimes {
    pub(crate) fn new(node: RuntimeNode) -> Self {
        Self { node, state: tokio::sync::Mutex::default(), running: Arc::default() }
    }
}

impl Task for OperateRuntimes {
    const NAME: &'static str = "operate_runtimes";
    const EVERY: Duration = Duration::from_millis(500);
    const WAKE: Option<Topic> = Some(Topic::Runtimes);

    async fn run(&self, store: &Store) -> Result<TaskOutcome, StoreError> {
        let shared = &self.node.shared;
        let mut state = self.state.lock().await;
        if state.heartbeat_at.is_none_or(|at| at.elapsed().as_secs() >= NODE_HEARTBEAT_S as u64) {
            let fault = self.fault(store, &mut state).await?;
            metrics::gauge!("windlass_docker_up").set(if fault.is_none() { 1.0 } else { 0.0 });
            store.beat_engine_node(&shared.context.node, shared.options.offer.clone(), fault).await?;
            store.start_desired_runtimes(&shared.context.node).await?;
            for moved in store.evacuate_lost_nodes(shared.options.move_after_s).await? {
                let Relocated { name, from, to } = moved;
                tracing::warn!(runtime = %name, from, to, "moved a runtime from a lost node");
                metrics::counter!("windlass_runtimes_moved_total").increment(1);
            }
            store.close_orphaned_operations().await?;
            state.heartbeat_at = Some(Instant::now());
        }
        let tenants = store.tenants_with_operations(&shared.context.node).await?;
        for tenant in &tenants {
            if !state.workers.contains_key(tenant) {
                let id =
                    store.register_node_worker(*tenant, &shared.context.node, worker(&shared.context.node)).await?;
                let now = Instant::now();
                state.workers.insert(*tenant, RegisteredWorker { id, heartbeat_at: now, used_at: now });
            }
        }
        self.keep_alive(store, &mut state).await?;
        let mut started = 0;
        for tenant in tenants {
            let Some(worker) = state.workers.get_mut(&tenant) else { continue };
            let capacity = CONCURRENT_OPERATIONS.saturating_sub(self.running_count());
            if capacity == 0 || shared.stop.is_cancelled() {
                break;
            }
            let affinity = Some(Label::stored(&shared.context.node));
            match store.claim(tenant, worker.id, capacity, affinity).await? {
                Claimed::Jobs { draining: true, .. } => self.replace(store, &mut state, tenant).await?,
                Claimed::Jobs { jobs, .. } if jobs.is_empty() => {}
                Claimed::Jobs { jobs, .. } => {
                    started += jobs.len();
                    worker.used_at = Instant::now();
                    jobs.iter().for_each(|job| self.start(store, tenant, worker.id, job.id, job.epoch));
                }
                Claimed::LeaseExpired | Claimed::NotFound => self.abort_operations(&mut state, tenant),
            }
        }
        let work = || TaskOutcome::work(format!("{started} operations started"));
        Ok(if started > 0 { work() } else { TaskOutcome::nothing() })
    }
}

fn worker(node: &str) -> NewWorker {
    NewWorker {
        name: format!("engine {node}"),
        queues: vec![Name::stored(QUEUE)],
        kinds: None,
        affinities: Some(vec![Label::stored(node)]),
        lease_ms: OPERATION_LEASE_MS,
    }
}

impl OperateRuntimes {
    fn running_count(&self) -> usize {
        self.running.lock().expect("lock poisoned").len()
    }

    /// True if this worker has operations in progress.
    fn is_busy(&self, worker: WorkerId) -> bool {
        let running = self.running.lock().expect("lock poisoned");
        running.values().any(|(by, _)| *by == worker)
    }

    /// Replaces a worker that is being drained, because no other worker can run this node's operations. Once it has no
    /// operations, it is removed, and the next run registers another.
    async fn replace(&self, store: &Store, state: &mut WorkerState, tenant: TenantId) -> Result<(), StoreError> {
        let drained = state.workers.get(&tenant).map(|worker| worker.id).filter(|id| !self.is_busy(*id));
        if let Some(id) = drained {
            store.remove_worker(tenant, id).await?;
            state.workers.remove(&tenant);
        }
        Ok(())
    }

    /// Returns why Docker does not respond, if so. Renews the leases meanwhile, so that a slow Docker engine does not
    /// cost the workers their operations.
    async fn fault(&self, store: &Store, state: &mut WorkerState) -> Result<Option<String>, StoreError> {
        let timeout = Duration::from_secs(NODE_HEARTBEAT_S as u64);
        let mut ping = Box::pin(tokio::time::timeout(timeout, self.node.shared.docker.ping()));
        loop {
            tokio::select! {
                    result = &mut ping => return Ok(match result {
                        Ok(result) => result.err().map(|error| error.to_string()),
                        Err(_) => Some(format!("Docker did not respond within {NODE_HEARTBEAT_S} s")),
                    }),
                    () = tokio::time::sleep(HEARTBEAT) => self.keep_alive(store, state).await?,
            }
        }
    }

    /// Renews the leases, and removes idle workers.
    async fn keep_alive(&self, store: &Store, state: &mut WorkerState) -> Result<(), StoreError> {
        let tenants: Vec<TenantId> = state.workers.keys().copied().collect();
        for tenant in tenants {
            let Some(worker) = state.workers.get_mut(&tenant) else { continue };
            if !self.is_busy(worker.id) && worker.used_at.elapsed() > IDLE {
                store.remove_worker(tenant, worker.id).await?;
                state.workers.remove(&tenant);
            } else if worker.heartbeat_at.elapsed() >= HEARTBEAT {
                worker.heartbeat_at = Instant::now();
                match store.heartbeat(tenant, worker.id, None).await? {
                    Heartbeat::Alive { cancel, .. } => self.cancel(store, tenant, worker.id, &cancel).await?,
                    Heartbeat::LeaseExpired | Heartbeat::NotFound => self.abort_operations(state, tenant),
                }
            }
        }
        Ok(())
    }

    /// Aborts canceled operations. The container is left as it is, because the next operation checks its state first.
    async fn cancel(
        &self,
        store: &Store,
        tenant: TenantId,
        worker: WorkerId,
        jobs: &[JobId],
    ) -> Result<(), StoreError> {
        for job in jobs {
            let stopped = self.running.lock().expect("lock poisoned").remove(job);
            if let Some((_, task)) = stopped {
                task.abort();
            }
            let outcomes = store
                .job(tenant, *job)
                .await?
                .map(|found| vec![Settle { job: *job, epoch: found.epoch, end: End::Cancel }]);
            if let Some(outcomes) = outcomes {
                store.settle(tenant, worker, outcomes).await?;
            }
        }
        Ok(())
    }

    /// Aborts the operations of a worker whose lease has expired. Another worker continues them.
    fn abort_operations(&self, state: &mut WorkerState, tenant: TenantId) {
        let Some(lost) = state.workers.remove(&tenant) else { return };
        let mut running = self.running.lock().expect("lock poisoned");
        running.retain(|_, (worker, task)| {
            if *worker == lost.id {
                task.abort();
            }
            *worker != lost.id
        });
    }

    fn start(&self, store: &Store, tenant: TenantId, worker: WorkerId, job: JobId, epoch: Epoch) {
        let shared = self.node.shared.clone();
        let (store, finished) = (store.clone(), self.running.clone());
        // Locked until the task is inserted, because a short task would otherwise remove itself before.
        let mut running = self.running.lock().expect("lock poisoned");
        let task = self.node.shared.tracker.spawn(async move {
            if let Err(error) = operate(&shared, &store, tenant, worker, job, epoch).await {
                tracing::warn!(%job, %error, "failed to record an operation");
                // A permanent error is not retried quickly.
                let pause = if error.is_unavailable() { RELEASE_PAUSE } else { RELEASE_PAUSE_MAX };
                release(&shared, &store, (tenant, worker), (job, epoch), pause).await;
            }
            finished.lock().expect("lock poisoned").remove(&job);
            store.notifier().runtimes_changed();
        });
        running.insert(job, (worker, task.abort_handle()));
    }
}

/// Releases the job of an operation whose outcome could not be recorded. Its worker is alive, so no sweep would release
/// it. Retries until the worker is lost or the node stops.
async fn release(
    shared: &NodeShared,
    store: &Store,
    (tenant, worker): (TenantId, WorkerId),
    (job, epoch): (JobId, Epoch),
    mut pause: Duration,
) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = shared.stop.cancelled() => return,
        }
        match store.settle(tenant, worker, vec![Settle { job, epoch, end: End::Release }]).await {
            Ok(_) => return,
            Err(error) => tracing::warn!(%job, %error, "failed to release an operation; retrying"),
        }
        pause = RELEASE_PAUSE_MAX.min(2 * pause);
    }
}

/// Runs one operation, from claim to settle.
async fn operate(
    shared: &NodeShared,
    store: &Store,
    tenant: TenantId,
    worker: WorkerId,
    job: JobId,
    epoch: Epoch,
) -> Result<(), StoreError> {
    let node = &shared.context.node;
    let end = match store.begin_operation(tenant, job, node).await? {
        BeginOutcome::Proceed(line, runtime) => {
            let started = Instant::now();
            let ended = perform(shared.docker.as_ref(), &shared.context, &line, &runtime).await;
            let code = ended.code.map_or("", OperationCode::as_str);
            metrics::counter!("windlass_operations_total", "kind" => line.kind.as_str(),
                "outcome" => ended.outcome.as_str(), "code" => code)
            .increment(1);
            metrics::histogram!("windlass_operation_seconds", "kind" => line.kind.as_str())
                .record(started.elapsed().as_secs_f64());
            tracing::info!(runtime = %runtime.name, kind = %line.kind, outcome = ended.outcome.as_str(), code,
                message = ended.message.as_deref(), "an operation ended");
            let end = end_of(ended.outcome, ended.code, ended.message.as_deref());
            store.end_operation(tenant, line.id, node, ended).await?;
            end
        }
        BeginOutcome::Unplaceable(line, reason) => {
            let (code, message) = (reason.code(), reason.to_string());
            tracing::info!(runtime = %line.runtime, kind = %line.kind, message, "no node can run an operation at present");
            store.end_operation(tenant, line.id, node, not_started(code, &message)).await?;
            end_of(OperationOutcome::Failure, Some(code), Some(&message))
        }
        BeginOutcome::Superseded(line, later) => {
            let (code, message) = (OperationCode::Conflict, format!("superseded by a later {later}"));
            tracing::info!(runtime = %line.runtime, kind = %line.kind, message, "an operation was superseded");
            store.end_operation(tenant, line.id, node, not_started(code, &message)).await?;
            end_of(OperationOutcome::Failure, Some(code), Some(&message))
        }
        BeginOutcome::SecretsUnreadable(line, message) => {
            let code = OperationCode::StartConfigInvalid;
            tracing::warn!(runtime = %line.runtime, kind = %line.kind, message, "an operation cannot run");
            store.end_operation(tenant, line.id, node, not_started(code, &message)).await?;
            end_of(OperationOutcome::Failure, Some(code), Some(&message))
        }
        BeginOutcome::OtherNode => End::Release,
        BeginOutcome::AlreadyEnded(code, outcome) => end_of(outcome, code, None),
        BeginOutcome::NotFound => {
            end_of(OperationOutcome::Failure, Some(OperationCode::InvalidRequest), Some("the job has no operation"))
        }
    };
    store.settle(tenant, worker, vec![Settle { job, epoch, end }]).await.map(drop)
}

/// The end of an attempt that did not reach Docker.
fn not_started(code: OperationCode, message: &str) -> OperationEnd {
    OperationEnd {
        outcome: OperationOutcome::Failure,
        code: Some(code),
        message: Some(message.to_owned()),
        container_id: None,
        change: ContainerChange::Nothing,
        steps: Vec::new(),
        again: code.is_retryable(),
    }
}

fn end_of(outcome: OperationOutcome, code: Option<OperationCode>, message: Option<&str>) -> End {
    match (outcome, code) {
        (OperationOutcome::Success, code) => {
            End::Finish(code.map(|code| format!(r#"{{"code":"{}"}}"#, code.as_str()).into()))
        }
        (OperationOutcome::Failure, code) => {
            let code = code.unwrap_or(OperationCode::InternalError);
            let message = message.unwrap_or_default().to_owned();
            End::Fail(JobError { code: code.as_str().into(), message, retryable: code.is_retryable() })
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::runtimes::{ImageRef, RuntimeSpec};
    use domain::{JobState, RuntimeName};
    use store::db::tx::{Operation, Tx};
    use store::queue::enqueue::EnqueueReply;
    use store::runtimes::nodes::NodeOffer;
    use testkit::{Database, on_both};
    use tokio_util::sync::CancellationToken;
    use tokio_util::task::TaskTracker;

    use super::*;
    use crate::runtimes::RuntimeOptions;

    const T: TenantId = TenantId::DEFAULT;

    struct Statements(&'static str);

    impl Operation for Statements {
        type Output = ();

        async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
            tx.batch(self.0).await
        }
    }

    /// Requirement R3.
    #[tokio::test]
    async fn an_operation_that_could_not_be_stored_is_taken_up_again() {
        let db = Database::sqlite().await;
        let store = &db.store;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let options = RuntimeOptions::new("here", "unix:///nowhere/docker.sock", folder.path().to_owned());
        let tracker = TaskTracker::new();
        let node = RuntimeNode::open(store, options, tracker.clone(), CancellationToken::new()).await.expect("opens");
        let made = store.enqueue(T, vec![testkit::job("q")], None).await.expect("enqueues");
        let EnqueueReply::Accepted(made) = made else { panic!("no key was given") };
        let mut with_long_lease = worker("here");
        let NewWorker { queues, affinities, lease_ms, .. } = &mut with_long_lease;
        (*queues, *affinities, *lease_ms) = (vec![Name::stored("q")], None, 3_600_000);
        let worker = store.register_worker(T, with_long_lease).await.expect("registers");
        let claimed = store.claim(T, worker, 1, None).await.expect("claims");
        let Claimed::Jobs { jobs, .. } = claimed else { panic!("the worker is alive") };
        store.write(Statements("alter table operations rename to away")).await.expect("removes the table");
        let operate = OperateRuntimes::new(node);
        operate.start(store, T, worker, jobs[0].id, jobs[0].epoch);
        assert!(operate.is_busy(worker));
        tracker.close();
        tracker.wait().await;
        assert!(!operate.is_busy(worker));
        let released = store.job(T, made[0].id).await.expect("reads").expect("exists");
        assert_eq!(released.state, JobState::Queued);
    }

    /// Requirement R5.
    #[tokio::test]
    async fn server_downtime_does_not_make_a_node_lost() {
        on_both(async |db| {
            let store = &db.store;
            let beat = async |node: &str| {
                store.beat_engine_node(node, NodeOffer::default(), None).await.expect("beats");
            };
            beat("a").await;
            let mut spec = RuntimeSpec::of(ImageRef::stored("model:1.2.3"));
            spec.movable = true;
            store.put_runtime(T, RuntimeName::stored("model"), spec, "ann".into()).await.expect("declares");
            let runs = "update runtimes set node = 'a', status = 'running', container_id = 'c'";
            store.write(Statements(runs)).await.expect("runs");
            let moved = async || store.evacuate_lost_nodes(60).await.expect("runs").len();
            db.clock.advance_ms(600_000);
            beat("b").await;
            assert_eq!(moved().await, 0, "no heartbeat has ended the outage yet");
            assert!(store.beat().await.expect("beats"), "the outage is detected");
            assert_eq!(moved().await, 0, "node a has had no time for a heartbeat");
            db.pass_ms(61_000).await;
            beat("b").await;
            assert_eq!(moved().await, 1, "node a is lost");
        })
        .await;
    }
}
