//! Takes this node's operations as any worker takes jobs, and does each in a task of its own.
//!
//! A job belongs to the node while it says that it lives. One that went silent has its operations taken on by whoever
//! drives the engine next, itself after a restart.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use domain::limits::{NODE_BEAT_S, OPERATION_LEASE_MS, OPERATIONS_UNDER_WAY};
use domain::runtime::OperationCode;
use domain::{Epoch, JobError, JobId, Label, Name, TenantId, WorkerId};
use store::hints::Topic;
use store::jobs::claim::Claimed;
use store::jobs::settle::{End, Outcome as Settle};
use store::runtimes::begin::Begun;
use store::runtimes::operate::{Change, Ended};
use store::runtimes::relocate::Relocated;
use store::runtimes::{Outcome, QUEUE};
use store::workers::heartbeat::Heartbeat;
use store::workers::register::NewWorker;
use store::{Store, StoreError};
use tokio::task::AbortHandle;

use super::operate::perform;
use super::{RuntimeNode, Shared};
use crate::task::{Done, Task};

/// A worker that has nothing to do is kept this long.
const IDLE: Duration = Duration::from_secs(30);
/// How soon the job of an operation that could not be written down is given back, and how seldom that is tried at last.
const GIVE_BACK: Duration = Duration::from_millis(200);
const GIVE_BACK_MAX: Duration = Duration::from_secs(10);
/// Three heartbeats in a lease.
const TERM: Duration = Duration::from_millis(OPERATION_LEASE_MS as u64 / 3);

pub(crate) struct OperateRuntimes {
    node: RuntimeNode,
    state: tokio::sync::Mutex<State>,
    under_way: Arc<Mutex<HashMap<JobId, (WorkerId, AbortHandle)>>>,
}

#[derive(Default)]
struct State {
    workers: HashMap<TenantId, Registered>,
    beat_at: Option<Instant>,
}

struct Registered {
    id: WorkerId,
    beat_at: Instant,
    used_at: Instant,
}

impl OperateRuntimes {
    pub(crate) fn new(node: RuntimeNode) -> Self {
        Self { node, state: tokio::sync::Mutex::default(), under_way: Arc::default() }
    }
}

impl Task for OperateRuntimes {
    const NAME: &'static str = "operate_runtimes";
    const EVERY: Duration = Duration::from_millis(500);
    const WAKE: Option<Topic> = Some(Topic::Runtimes);

    async fn run(&self, store: &Store) -> Result<Done, StoreError> {
        let shared = &self.node.shared;
        let mut state = self.state.lock().await;
        if state.beat_at.is_none_or(|at| at.elapsed().as_secs() >= NODE_BEAT_S as u64) {
            let fault = self.fault(store, &mut state).await?;
            metrics::gauge!("windlass_docker_up").set(if fault.is_none() { 1.0 } else { 0.0 });
            store.beat_engine_node(&shared.place.node, shared.options.offer.clone(), fault).await?;
            store.start_what_is_wanted(&shared.place.node).await?;
            for moved in store.leave_lost_nodes(shared.options.move_after_s).await? {
                let Relocated { name, from, to } = moved;
                tracing::warn!(runtime = %name, from, to, "a runtime was moved: its node is lost");
                metrics::counter!("windlass_runtimes_moved_total").increment(1);
            }
            store.close_forgotten_operations().await?;
            state.beat_at = Some(Instant::now());
        }
        let tenants = store.tenants_with_operations(&shared.place.node).await?;
        for tenant in &tenants {
            if !state.workers.contains_key(tenant) {
                let id = store.register_worker(*tenant, worker(&shared.place.node)).await?;
                let now = Instant::now();
                state.workers.insert(*tenant, Registered { id, beat_at: now, used_at: now });
            }
        }
        self.keep_alive(store, &mut state).await?;
        let mut begun = 0;
        for tenant in tenants {
            let Some(worker) = state.workers.get_mut(&tenant) else { continue };
            let room = OPERATIONS_UNDER_WAY.saturating_sub(self.busy());
            if room == 0 || shared.stop.is_cancelled() {
                break;
            }
            let held = Some(Label::stored(&shared.place.node));
            match store.claim(tenant, worker.id, room, held).await? {
                Claimed::Jobs { draining: true, .. } => self.replace(store, &mut state, tenant).await?,
                Claimed::Jobs { jobs, .. } if jobs.is_empty() => {}
                Claimed::Jobs { jobs, .. } => {
                    begun += jobs.len();
                    worker.used_at = Instant::now();
                    jobs.iter().for_each(|job| self.begin(store, tenant, worker.id, job.id, job.epoch));
                }
                Claimed::Gone | Claimed::NotFound => self.lose(&mut state, tenant),
            }
        }
        Ok(if begun > 0 { Done::work(format!("{begun} operations begun")) } else { Done::nothing() })
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
    fn busy(&self) -> usize {
        self.under_way.lock().expect("nobody panics with the map in hand").len()
    }

    /// Whether this worker has operations under way.
    fn works(&self, worker: WorkerId) -> bool {
        let under_way = self.under_way.lock().expect("nobody panics with the map in hand");
        under_way.values().any(|(by, _)| *by == worker)
    }

    /// Somebody asked the worker to drain, and there is nobody else to do this node's operations: once it has none in hand,
    /// the next look registers another.
    async fn replace(&self, store: &Store, state: &mut State, tenant: TenantId) -> Result<(), StoreError> {
        let drained = state.workers.get(&tenant).map(|worker| worker.id).filter(|id| !self.works(*id));
        if let Some(id) = drained {
            store.remove_worker(tenant, id).await?;
            state.workers.remove(&tenant);
        }
        Ok(())
    }

    /// Why the engine does not answer, if it does not. One that takes its time costs no operation its worker.
    async fn fault(&self, store: &Store, state: &mut State) -> Result<Option<String>, StoreError> {
        let patience = Duration::from_secs(NODE_BEAT_S as u64);
        let mut answer = Box::pin(tokio::time::timeout(patience, self.node.shared.docker.ping()));
        loop {
            tokio::select! {
                answer = &mut answer => return Ok(match answer {
                    Ok(answer) => answer.err().map(|error| error.to_string()),
                    Err(_) => Some(format!("the engine did not answer within {NODE_BEAT_S} s")),
                }),
                () = tokio::time::sleep(TERM) => self.keep_alive(store, state).await?,
            }
        }
    }

    /// Renews the leases, and lets workers go that have had nothing to do for a while.
    async fn keep_alive(&self, store: &Store, state: &mut State) -> Result<(), StoreError> {
        let tenants: Vec<TenantId> = state.workers.keys().copied().collect();
        for tenant in tenants {
            let Some(worker) = state.workers.get_mut(&tenant) else { continue };
            if !self.works(worker.id) && worker.used_at.elapsed() > IDLE {
                store.remove_worker(tenant, worker.id).await?;
                state.workers.remove(&tenant);
            } else if worker.beat_at.elapsed() >= TERM {
                worker.beat_at = Instant::now();
                match store.heartbeat(tenant, worker.id, None).await? {
                    Heartbeat::Alive { cancel, .. } => self.cancel(store, tenant, worker.id, &cancel).await?,
                    Heartbeat::Gone | Heartbeat::NotFound => self.lose(state, tenant),
                }
            }
        }
        Ok(())
    }

    /// Someone canceled the job. What the engine is doing is left as it is: the next operation looks first.
    async fn cancel(
        &self,
        store: &Store,
        tenant: TenantId,
        worker: WorkerId,
        jobs: &[JobId],
    ) -> Result<(), StoreError> {
        for job in jobs {
            let stopped = self.under_way.lock().expect("nobody panics with the map in hand").remove(job);
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

    /// The lease is gone: whatever was under way belongs to another.
    fn lose(&self, state: &mut State, tenant: TenantId) {
        let Some(lost) = state.workers.remove(&tenant) else { return };
        let mut under_way = self.under_way.lock().expect("nobody panics with the map in hand");
        under_way.retain(|_, (worker, task)| {
            if *worker == lost.id {
                task.abort();
            }
            *worker != lost.id
        });
    }

    fn begin(&self, store: &Store, tenant: TenantId, worker: WorkerId, job: JobId, epoch: Epoch) {
        let shared = self.node.shared.clone();
        let (store, mine) = (store.clone(), self.under_way.clone());
        // Held until it is written down: a task that is done at once finds itself there.
        let mut under_way = self.under_way.lock().expect("nobody panics with the map in hand");
        let task = self.node.shared.tracker.spawn(async move {
            if let Err(error) = operate(&shared, &store, tenant, worker, job, epoch).await {
                tracing::warn!(%job, %error, "an operation could not be written down");
                // What will not pass by itself is not tried again at once.
                let pause = if error.is_unavailable() { GIVE_BACK } else { GIVE_BACK_MAX };
                give_back(&shared, &store, (tenant, worker), (job, epoch), pause).await;
            }
            mine.lock().expect("nobody panics with the map in hand").remove(&job);
            store.hints().runtimes_changed();
        });
        under_way.insert(job, (worker, task.abort_handle()));
    }
}

/// The worker lives on, so nobody else would take the job from it: it goes back, and the operation is taken on anew. What
/// the database does not take is tried again until the worker is lost or the node stops.
async fn give_back(
    shared: &Shared,
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
            Err(error) => tracing::warn!(%job, %error, "an operation could not be given back yet"),
        }
        pause = GIVE_BACK_MAX.min(2 * pause);
    }
}

/// One operation, from claim to settle.
async fn operate(
    shared: &Shared,
    store: &Store,
    tenant: TenantId,
    worker: WorkerId,
    job: JobId,
    epoch: Epoch,
) -> Result<(), StoreError> {
    let node = &shared.place.node;
    let end = match store.begin_operation(tenant, job, node).await? {
        Begun::Go(line, runtime) => {
            let started = Instant::now();
            let ended = perform(shared.docker.as_ref(), &shared.place, &line, &runtime).await;
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
        Begun::Nowhere(line, nowhere) => {
            let (code, message) = (nowhere.code(), nowhere.to_string());
            tracing::info!(runtime = %line.runtime, kind = %line.kind, message, "an operation waits for a node");
            store.end_operation(tenant, line.id, node, untouched(code, &message)).await?;
            end_of(Outcome::Failure, Some(code), Some(&message))
        }
        Begun::Overtaken(line, later) => {
            let (code, message) = (OperationCode::Conflict, format!("the {later} that was asked for after it is done"));
            tracing::info!(runtime = %line.runtime, kind = %line.kind, message, "an operation was overtaken");
            store.end_operation(tenant, line.id, node, untouched(code, &message)).await?;
            end_of(Outcome::Failure, Some(code), Some(&message))
        }
        Begun::Unopened(line, message) => {
            let code = OperationCode::StartConfigInvalid;
            tracing::warn!(runtime = %line.runtime, kind = %line.kind, message, "an operation cannot be done");
            store.end_operation(tenant, line.id, node, untouched(code, &message)).await?;
            end_of(Outcome::Failure, Some(code), Some(&message))
        }
        Begun::Elsewhere => End::Release,
        Begun::Over(code, outcome) => end_of(outcome, code, None),
        Begun::Nothing => {
            end_of(Outcome::Failure, Some(OperationCode::InvalidRequest), Some("no operation stands behind it"))
        }
    };
    store.settle(tenant, worker, vec![Settle { job, epoch, end }]).await.map(drop)
}

/// A try that ended before the engine was asked for anything.
fn untouched(code: OperationCode, message: &str) -> Ended {
    Ended {
        outcome: Outcome::Failure,
        code: Some(code),
        message: Some(message.to_owned()),
        container_id: None,
        change: Change::Nothing,
        steps: Vec::new(),
        again: code.passes(),
    }
}

fn end_of(outcome: Outcome, code: Option<OperationCode>, message: Option<&str>) -> End {
    match (outcome, code) {
        (Outcome::Success, code) => End::Finish(code.map(|code| format!(r#"{{"code":"{}"}}"#, code.as_str()).into())),
        (Outcome::Failure, code) => {
            let code = code.unwrap_or(OperationCode::InternalError);
            let message = message.unwrap_or_default().to_owned();
            End::Fail(JobError { code: code.as_str().into(), message, retryable: code.passes() })
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::runtime::{ImageRef, RuntimeSpec};
    use domain::{JobState, RuntimeName};
    use store::jobs::enqueue::EnqueueReply;
    use store::runtimes::nodes::NodeOffer;
    use store::tx::{Operation, Tx};
    use testkit::{Database, on_both};
    use tokio_util::sync::CancellationToken;
    use tokio_util::task::TaskTracker;

    use super::*;
    use crate::runtime::RuntimeOptions;

    const T: TenantId = TenantId::DEFAULT;

    struct Statements(&'static str);

    impl Operation for Statements {
        type Output = ();

        async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
            tx.batch(self.0).await
        }
    }

    #[tokio::test]
    async fn r3_an_operation_that_the_database_did_not_take_is_taken_on_anew() {
        let db = Database::sqlite().await;
        let store = &db.store;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let options = RuntimeOptions::new("here", "unix:///nowhere/docker.sock", folder.path().to_owned());
        let tracker = TaskTracker::new();
        let node = RuntimeNode::open(store, options, tracker.clone(), CancellationToken::new()).await.expect("opens");
        let made = store.enqueue(T, vec![testkit::job("q")], None).await.expect("makes a job");
        let EnqueueReply::Accepted(made) = made else { panic!("no key was given") };
        let mut patient = worker("here");
        (patient.queues, patient.affinities, patient.lease_ms) = (vec![Name::stored("q")], None, 3_600_000);
        let worker = store.register_worker(T, patient).await.expect("registers");
        let claimed = store.claim(T, worker, 1, None).await.expect("claims");
        let Claimed::Jobs { jobs, .. } = claimed else { panic!("it lives") };
        store.write(Statements("alter table operations rename to away")).await.expect("takes it away");
        let operate = OperateRuntimes::new(node);
        operate.begin(store, T, worker, jobs[0].id, jobs[0].epoch);
        assert!(operate.works(worker));
        tracker.close();
        tracker.wait().await;
        assert!(!operate.works(worker));
        let back = store.job(T, made[0].id).await.expect("reads").expect("is there");
        assert_eq!(back.state, JobState::Queued);
    }

    #[tokio::test]
    async fn r5_an_outage_of_ours_is_no_silence_of_the_nodes() {
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
            let leave = async || store.leave_lost_nodes(60).await.expect("looks").len();
            db.clock.advance_ms(600_000);
            beat("b").await;
            assert_eq!(leave().await, 0, "no beat has ended the outage yet");
            assert!(store.beat().await.expect("beats"), "the outage is noticed");
            assert_eq!(leave().await, 0, "a has had no time to say that it is there");
            db.pass_ms(61_000).await;
            beat("b").await;
            assert_eq!(leave().await, 1, "a is lost");
        })
        .await;
    }
}
