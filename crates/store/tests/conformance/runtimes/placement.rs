//! Placement: which node runs a runtime. No node exceeds its slots.

use std::collections::BTreeMap;

use domain::runtimes::{ImageRef, OperationCode, OperationKind, OperationSource, Placement, RuntimeSpec};
use domain::{JobError, Label, RuntimeName, WorkerId};
use store::Store;
use store::queue::claim::ClaimedJob;
use store::queue::settle::{End, SettleStatus};
use store::queue::workers::register::NewWorker;
use store::runtimes::begin::BeginOutcome;
use store::runtimes::nodes::NodeOffer;
use store::runtimes::operate::{ContainerChange, OperationEnd, StartedContainer};
use store::runtimes::request::{NewOperation, Requested};
use store::runtimes::{OperationOutcome, OperationRecord, QUEUE, Runtime};
use testkit::{on_both, on_postgres};

use crate::support::*;

pub(crate) fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

pub(crate) async fn declare(store: &Store, name: &str, wanted: &[(&str, &str)]) {
    declare_as(store, name, |spec| spec.placement = Placement { labels: labels(wanted) }).await;
}

pub(crate) async fn declare_as(store: &Store, name: &str, change: impl FnOnce(&mut RuntimeSpec)) {
    let mut spec = RuntimeSpec::of(ImageRef::stored("model:1.2.3"));
    change(&mut spec);
    store.put_runtime(T, RuntimeName::stored(name), spec, "ann".into()).await.expect("declares");
}

/// How far ahead of the clock a heartbeat is recorded. The node counts as alive for that long, however slow the test
/// is.
pub(crate) const BEAT_AHEAD_MS: i64 = 60_000;

pub(crate) async fn beat(store: &Store, node: &str, has: &[(&str, &str)], slots: Option<i64>) {
    beat_ahead(store, node, NodeOffer { labels: labels(has), slots }, None).await;
}

async fn beat_ahead(store: &Store, node: &str, offer: NodeOffer, fault: Option<String>) {
    store.clock().advance_ms(BEAT_AHEAD_MS);
    store.beat_engine_node(node, offer, fault).await.expect("beats");
    store.clock().advance_ms(-BEAT_AHEAD_MS);
}

pub(crate) async fn request_operation(store: &Store, name: &str, kind: OperationKind) -> Requested {
    let new = NewOperation {
        kind,
        source: OperationSource::Api,
        source_ref: None,
        image: None,
        actor: "ann".into(),
        depth: 0,
        on: None,
    };
    store.request_operation(T, &RuntimeName::stored(name), new).await.expect("answers")
}

pub(crate) async fn runtime(store: &Store, name: &str) -> Runtime {
    store.runtime(T, &RuntimeName::stored(name)).await.expect("reads").expect("the runtime is declared")
}

pub(crate) async fn operations_of(store: &Store, name: &str) -> Vec<OperationRecord> {
    store.list_operations(T, &RuntimeName::stored(name), None, 100).await.expect("reads")
}

async fn node_of(store: &Store, name: &str) -> Option<String> {
    runtime(store, name).await.node
}

/// The worker of a node's engine. It claims, begins and ends operations without a container engine.
pub(crate) struct Node {
    pub(crate) name: &'static str,
    worker: WorkerId,
}

impl Node {
    pub(crate) async fn new(store: &Store, name: &'static str) -> Self {
        let worker =
            NewWorker { affinities: Some(vec![Label::stored(name)]), lease_ms: 3_600_000, ..new_worker(&[QUEUE]) };
        Self { name, worker: store.register_worker(T, worker).await.expect("registers") }
    }

    /// Removes the worker, as the sweep does after its lease.
    pub(crate) async fn die(&self, store: &Store) {
        store.remove_worker(T, self.worker).await.expect("removes");
    }

    pub(crate) async fn claim(&self, store: &Store) -> Vec<ClaimedJob> {
        claim(store, self.worker, 100).await
    }

    pub(crate) async fn begin(&self, store: &Store, job: &ClaimedJob) -> BeginOutcome {
        store.begin_operation(T, job.id, self.name).await.expect("answers")
    }

    async fn settle(&self, store: &Store, job: &ClaimedJob, end: End) {
        assert_eq!(settle(store, self.worker, job.id, job.epoch, end).await, SettleStatus::Applied);
    }

    pub(crate) async fn release(&self, store: &Store, job: &ClaimedJob) {
        self.settle(store, job, End::Release).await;
    }

    /// Reports success, as a node does before it settles the job.
    pub(crate) async fn report(&self, store: &Store, record: &OperationRecord, change: ContainerChange) {
        let ended = OperationEnd {
            outcome: OperationOutcome::Success,
            code: None,
            message: None,
            container_id: None,
            change,
            steps: Vec::new(),
            again: false,
        };
        store.end_operation(T, record.id, self.name, ended).await.expect("ends");
    }

    pub(crate) async fn end(&self, store: &Store, job: &ClaimedJob, record: &OperationRecord, change: ContainerChange) {
        self.report(store, record, change).await;
        self.settle(store, job, End::Finish(None)).await;
    }

    pub(crate) fn started(&self, runtime: &Runtime) -> ContainerChange {
        started(self.name, runtime)
    }

    /// Begins an operation that no node can take and fails it for a retry.
    async fn fail_placement(&self, store: &Store, job: &ClaimedJob) -> (OperationCode, String) {
        let BeginOutcome::Unplaceable(record, unplaceable) = self.begin(store, job).await else {
            panic!("a node is available")
        };
        let (code, message) = (unplaceable.code(), unplaceable.to_string());
        self.fail(store, job, &record, code, &message).await;
        (code, message)
    }

    /// Fails the operation. The code decides whether it is retried.
    pub(crate) async fn fail(
        &self,
        store: &Store,
        job: &ClaimedJob,
        record: &OperationRecord,
        code: OperationCode,
        message: &str,
    ) {
        let ended = OperationEnd {
            outcome: OperationOutcome::Failure,
            code: Some(code),
            message: Some(message.to_owned()),
            container_id: None,
            change: ContainerChange::Nothing,
            steps: Vec::new(),
            again: code.is_retryable(),
        };
        store.end_operation(T, record.id, self.name, ended).await.expect("ends");
        let error =
            JobError { code: code.as_str().into(), message: message.to_owned(), retryable: code.is_retryable() };
        self.settle(store, job, End::Fail(error)).await;
    }

    /// Completes all claimable operations and returns the names of the runtimes.
    pub(crate) async fn work(&self, store: &Store) -> Vec<String> {
        let mut done = Vec::new();
        for job in self.claim(store).await {
            match self.begin(store, &job).await {
                BeginOutcome::Proceed(record, runtime) => {
                    let change =
                        if record.kind.brings_up() { started(self.name, &runtime) } else { ContainerChange::Stopped };
                    self.end(store, &job, &record, change).await;
                    done.push(runtime.name.to_string());
                }
                other => panic!("{other:?}"),
            }
        }
        done
    }
}

fn started(node: &str, runtime: &Runtime) -> ContainerChange {
    ContainerChange::Started(StartedContainer {
        container_id: format!("{} on {node}", runtime.name),
        image: runtime.spec.image.to_string(),
        endpoint: Some(format!("http://{node}")),
        state_path: "/state".into(),
    })
}

/// Requirement R1.
#[tokio::test]
async fn a_runtime_is_placed_by_labels_and_most_free_slots() {
    on_both(async |db| {
        let store = &db.store;
        beat(store, "a", &[("gpu", "a100")], Some(2)).await;
        beat(store, "b", &[], Some(4)).await;
        for (name, wanted) in [("plain", &[][..]), ("gpu", &[("gpu", "a100")][..]), ("next", &[][..])] {
            declare(store, name, wanted).await;
            assert!(matches!(request_operation(store, name, OperationKind::Start).await, Requested::Accepted { .. }));
        }
        assert_eq!(node_of(store, "plain").await.as_deref(), Some("b"));
        assert_eq!(node_of(store, "gpu").await.as_deref(), Some("a"), "selected by its label");
        assert_eq!(node_of(store, "next").await.as_deref(), Some("b"), "b has more free slots");
        let (a, b) = (Node::new(store, "a").await, Node::new(store, "b").await);
        assert_eq!(a.work(store).await, ["gpu"], "each node claims its own operations");
        assert_eq!(b.work(store).await.len(), 2);
        let load = store.engine_nodes_with_load().await.expect("reads");
        let load: Vec<_> = load.iter().map(|(node, taken)| (node.name.as_str(), *taken)).collect();
        assert_eq!(load, [("a", 1), ("b", 2)]);
        assert_counters_match(store).await;
    })
    .await;
}

/// Requirement R1.
#[tokio::test]
async fn a_lost_node_or_one_without_docker_is_not_chosen() {
    on_both(async |db| {
        let store = &db.store;
        beat(store, "a", &[], None).await;
        db.pass_ms(BEAT_AHEAD_MS + 16_000).await;
        declare(store, "model", &[]).await;
        assert_eq!(request_operation(store, "model", OperationKind::Start).await, Requested::NoNode, "a is lost");
        beat_ahead(store, "b", NodeOffer::default(), Some("gone".into())).await;
        assert!(
            matches!(request_operation(store, "model", OperationKind::Start).await, Requested::Accepted { .. }),
            "the operation waits"
        );
        assert_eq!(node_of(store, "model").await, None);
        let b = Node::new(store, "b").await;
        let job = b.claim(store).await.remove(0);
        let message = "Docker on node b is unreachable: gone";
        assert_eq!(b.fail_placement(store, &job).await, (OperationCode::DockerUnavailable, message.into()));
        beat(store, "b", &[], None).await;
        db.pass_ms(2_000).await;
        store.promote_due().await.expect("promotes");
        assert_eq!(b.work(store).await, ["model"], "retried once the engine is back");
        assert_counters_match(store).await;
    })
    .await;
}

/// Requirement R1.
#[tokio::test]
async fn an_unplaceable_runtime_reports_why_and_starts_when_a_node_fits() {
    on_both(async |db| {
        let store = &db.store;
        beat(store, "a", &[("gpu", "a100")], Some(1)).await;
        declare(store, "model", &[("gpu", "h100")]).await;
        let Requested::Accepted { operation, .. } = request_operation(store, "model", OperationKind::Start).await
        else {
            panic!("the operation waits")
        };
        let a = Node::new(store, "a").await;
        let job = a.claim(store).await.remove(0);
        let why = (OperationCode::ServiceUnavailable, "no node has gpu=h100".to_owned());
        assert_eq!(a.fail_placement(store, &job).await, why);
        let stored = store.operation(T, operation).await.expect("reads").expect("is there");
        assert_eq!((stored.error_code, stored.error_message), (Some(why.0), Some(why.1)));
        // A matching node arrives. Whichever node claims the job assigns it to the new one.
        beat(store, "c", &[("gpu", "h100")], Some(1)).await;
        let c = Node::new(store, "c").await;
        db.pass_ms(2_000).await;
        store.promote_due().await.expect("promotes");
        let job = a.claim(store).await.remove(0);
        assert!(matches!(a.begin(store, &job).await, BeginOutcome::OtherNode));
        assert_eq!(node_of(store, "model").await.as_deref(), Some("c"));
        a.release(store, &job).await;
        assert_eq!(a.claim(store).await.len(), 0, "the job is bound to c");
        assert_eq!(c.work(store).await, ["model"]);
        let records = operations_of(store, "model").await;
        assert_eq!(records.len(), 2, "one failed attempt and one success: {records:?}");
        assert_counters_match(store).await;
    })
    .await;
}

/// Requirement R1.
#[tokio::test]
async fn a_runtime_waits_for_a_free_slot_of_its_node() {
    on_both(async |db| {
        let store = &db.store;
        beat(store, "a", &[], Some(1)).await;
        let a = Node::new(store, "a").await;
        for name in ["first", "second"] {
            declare(store, name, &[]).await;
        }
        request_operation(store, "first", OperationKind::Start).await;
        assert_eq!(a.work(store).await, ["first"]);
        request_operation(store, "second", OperationKind::Start).await;
        assert_eq!(node_of(store, "second").await, None, "no slot is free");
        request_operation(store, "first", OperationKind::Stop).await;
        let full = (OperationCode::ServiceUnavailable, "all slots are taken: 1 of 1 on a".to_owned());
        let mut jobs = a.claim(store).await;
        assert_eq!(a.fail_placement(store, &jobs.remove(0)).await, full);
        let BeginOutcome::Proceed(record, _) = a.begin(store, &jobs[0]).await else { panic!("a stop needs no slot") };
        a.end(store, &jobs[0], &record, ContainerChange::Stopped).await;
        beat(store, "a", &[], Some(1)).await;
        db.pass_ms(2_000).await;
        store.promote_due().await.expect("promotes");
        assert_eq!(a.work(store).await, ["second"], "once the first has stopped");
        // The first runtime is bound to node a and waits for its slot.
        request_operation(store, "first", OperationKind::Start).await;
        let job = a.claim(store).await.remove(0);
        assert_eq!(a.fail_placement(store, &job).await, full);
        request_operation(store, "second", OperationKind::Restart).await;
        assert_eq!(a.work(store).await, ["second"], "a running runtime keeps its slot");
        assert_counters_match(store).await;
    })
    .await;
}

/// Requirement R1.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_placements_do_not_exceed_the_slots_of_a_node() {
    on_postgres(async |db| {
        let (here, there) = (db.store.clone(), db.another_node().await);
        beat(&here, "a", &[], Some(1)).await;
        beat(&here, "b", &[], Some(2)).await;
        let names: Vec<String> = (0..12).map(|number| format!("model-{number}")).collect();
        for name in &names {
            declare(&here, name, &[]).await;
        }
        let mut requests = tokio::task::JoinSet::new();
        for (number, name) in names.iter().enumerate() {
            let (store, name) = (if number % 2 == 0 { here.clone() } else { there.clone() }, name.clone());
            requests.spawn(async move { request_operation(&store, &name, OperationKind::Start).await });
        }
        for requested in requests.join_all().await {
            assert!(
                matches!(requested, Requested::Accepted { .. }),
                "a request without a free slot waits: {requested:?}"
            );
        }
        let bound = async || {
            let mut bound: Vec<String> = Vec::new();
            for name in &names {
                bound.extend(node_of(&here, name).await);
            }
            bound.sort();
            bound
        };
        let once = bound().await;
        let on_a = once.iter().filter(|node| *node == "a").count();
        // A request that chose a slot taken meanwhile waits, so one slot may remain free.
        assert!(on_a <= 1 && (1..=2).contains(&(once.len() - on_a)), "a has one slot, b two: {once:?}");
        // Both nodes begin the waiting operations at once and share the remaining slots.
        let (a, b) = (Node::new(&here, "a").await, Node::new(&there, "b").await);
        let (of_a, of_b) = (a.claim(&here).await, b.claim(&there).await);
        assert_eq!(of_a.len() + of_b.len(), 12);
        let begin = async |node: &Node, store: &Store, jobs: &[ClaimedJob]| {
            for job in jobs {
                node.begin(store, job).await;
            }
        };
        tokio::join!(begin(&a, &here, &of_a), begin(&b, &there, &of_b));
        assert_eq!(bound().await, ["a", "b", "b"], "three slots, three runtimes");
        assert_counters_match(&here).await;
    })
    .await;
}
