//! Which node a runtime goes to, and that no node takes more than it has slots for (R1).

use std::collections::BTreeMap;

use domain::runtime::{ImageRef, OperationCode, OperationKind, OperationSource, Placement, RuntimeSpec};
use domain::{JobError, Label, RuntimeName, WorkerId};
use store::Store;
use store::jobs::claim::ClaimedJob;
use store::jobs::settle::{End, Status};
use store::runtimes::begin::Begun;
use store::runtimes::nodes::NodeOffer;
use store::runtimes::operate::{Change, Ended, Started};
use store::runtimes::request::{NewOperation, Requested};
use store::runtimes::{Logged, Outcome, QUEUE, Runtime};
use store::workers::register::NewWorker;
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

/// For how long a node has beaten ahead: until then it is there, however slow the machine is.
pub(crate) const BEATEN_AHEAD_MS: i64 = 60_000;

pub(crate) async fn beat(store: &Store, node: &str, has: &[(&str, &str)], slots: Option<i64>) {
    beat_ahead(store, node, NodeOffer { labels: labels(has), slots }, None).await;
}

async fn beat_ahead(store: &Store, node: &str, offer: NodeOffer, fault: Option<String>) {
    store.clock().advance_ms(BEATEN_AHEAD_MS);
    store.beat_engine_node(node, offer, fault).await.expect("beats");
    store.clock().advance_ms(-BEATEN_AHEAD_MS);
}

pub(crate) async fn ask(store: &Store, name: &str, kind: OperationKind) -> Requested {
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
    store.runtime(T, &RuntimeName::stored(name)).await.expect("reads").expect("is declared")
}

pub(crate) async fn lines(store: &Store, name: &str) -> Vec<Logged> {
    store.list_operations(T, &RuntimeName::stored(name), None, 100).await.expect("reads")
}

async fn node_of(store: &Store, name: &str) -> Option<String> {
    runtime(store, name).await.node
}

/// A node as its engine's worker: it claims, begins and ends operations without any engine.
pub(crate) struct Node {
    pub(crate) name: &'static str,
    worker: WorkerId,
}

impl Node {
    pub(crate) async fn new(store: &Store, name: &'static str) -> Self {
        let worker =
            NewWorker { affinities: Some(vec![Label::stored(name)]), lease_ms: 3_600_000, ..a_worker(&[QUEUE]) };
        Self { name, worker: store.register_worker(T, worker).await.expect("registers") }
    }

    /// Its worker is gone, as after its lease.
    pub(crate) async fn die(&self, store: &Store) {
        store.remove_worker(T, self.worker).await.expect("goes");
    }

    pub(crate) async fn claim(&self, store: &Store) -> Vec<ClaimedJob> {
        claim(store, self.worker, 100).await
    }

    pub(crate) async fn begin(&self, store: &Store, job: &ClaimedJob) -> Begun {
        store.begin_operation(T, job.id, self.name).await.expect("answers")
    }

    async fn settle(&self, store: &Store, job: &ClaimedJob, end: End) {
        assert_eq!(settle(store, self.worker, job.id, job.epoch, end).await, Status::Applied);
    }

    pub(crate) async fn release(&self, store: &Store, job: &ClaimedJob) {
        self.settle(store, job, End::Release).await;
    }

    /// Says how it went, as a node does before it settles the job.
    pub(crate) async fn tell(&self, store: &Store, line: &Logged, change: Change) {
        let ended = Ended {
            outcome: Outcome::Success,
            code: None,
            message: None,
            container_id: None,
            change,
            steps: Vec::new(),
            again: false,
        };
        store.end_operation(T, line.id, self.name, ended).await.expect("ends");
    }

    pub(crate) async fn end(&self, store: &Store, job: &ClaimedJob, line: &Logged, change: Change) {
        self.tell(store, line, change).await;
        self.settle(store, job, End::Finish(None)).await;
    }

    pub(crate) fn started(&self, runtime: &Runtime) -> Change {
        started(self.name, runtime)
    }

    /// The operation finds no place and is tried again.
    async fn give_up(&self, store: &Store, job: &ClaimedJob) -> (OperationCode, String) {
        let Begun::Nowhere(line, nowhere) = self.begin(store, job).await else { panic!("there is a place") };
        let (code, message) = (nowhere.code(), nowhere.to_string());
        self.fail(store, job, &line, code, &message).await;
        (code, message)
    }

    /// It did not go well; whether it is tried again is the code's to say.
    pub(crate) async fn fail(&self, store: &Store, job: &ClaimedJob, line: &Logged, code: OperationCode, told: &str) {
        let ended = Ended {
            outcome: Outcome::Failure,
            code: Some(code),
            message: Some(told.to_owned()),
            container_id: None,
            change: Change::Nothing,
            steps: Vec::new(),
            again: code.passes(),
        };
        store.end_operation(T, line.id, self.name, ended).await.expect("ends");
        let error = JobError { code: code.as_str().into(), message: told.to_owned(), retryable: code.passes() };
        self.settle(store, job, End::Fail(error)).await;
    }

    /// Does all that there is to do here. Gives the names of what it started or stopped.
    pub(crate) async fn work(&self, store: &Store) -> Vec<String> {
        let mut done = Vec::new();
        for job in self.claim(store).await {
            match self.begin(store, &job).await {
                Begun::Go(line, runtime) => {
                    let change = if line.kind.brings_up() { started(self.name, &runtime) } else { Change::Stopped };
                    self.end(store, &job, &line, change).await;
                    done.push(runtime.name.to_string());
                }
                other => panic!("{other:?}"),
            }
        }
        done
    }
}

fn started(node: &str, runtime: &Runtime) -> Change {
    Change::Started(Started {
        container_id: format!("{} on {node}", runtime.name),
        image: runtime.spec.image.to_string(),
        endpoint: Some(format!("http://{node}")),
        state_path: "/state".into(),
    })
}

#[tokio::test]
async fn r1_a_runtime_goes_where_its_labels_are_and_most_slots_are_free() {
    on_both(async |db| {
        let store = &db.store;
        beat(store, "a", &[("gpu", "a100")], Some(2)).await;
        beat(store, "b", &[], Some(4)).await;
        for (name, wanted) in [("plain", &[][..]), ("gpu", &[("gpu", "a100")][..]), ("next", &[][..])] {
            declare(store, name, wanted).await;
            assert!(matches!(ask(store, name, OperationKind::Start).await, Requested::Accepted { .. }));
        }
        assert_eq!(node_of(store, "plain").await.as_deref(), Some("b"));
        assert_eq!(node_of(store, "gpu").await.as_deref(), Some("a"), "by its label");
        assert_eq!(node_of(store, "next").await.as_deref(), Some("b"), "three are free there, one on a");
        let (a, b) = (Node::new(store, "a").await, Node::new(store, "b").await);
        assert_eq!(a.work(store).await, ["gpu"], "each node does its own");
        assert_eq!(b.work(store).await.len(), 2);
        let load = store.engine_nodes_with_load().await.expect("reads");
        let load: Vec<_> = load.iter().map(|(node, taken)| (node.name.as_str(), *taken)).collect();
        assert_eq!(load, [("a", 1), ("b", 2)]);
        sound(store).await;
    })
    .await;
}

#[tokio::test]
async fn r1_neither_a_lost_node_nor_one_whose_engine_is_away_is_chosen() {
    on_both(async |db| {
        let store = &db.store;
        beat(store, "a", &[], None).await;
        db.pass_ms(BEATEN_AHEAD_MS + 16_000).await;
        declare(store, "model", &[]).await;
        assert_eq!(ask(store, "model", OperationKind::Start).await, Requested::NoNode, "a is lost");
        beat_ahead(store, "b", NodeOffer::default(), Some("gone".into())).await;
        assert!(matches!(ask(store, "model", OperationKind::Start).await, Requested::Accepted { .. }), "it waits");
        assert_eq!(node_of(store, "model").await, None);
        let b = Node::new(store, "b").await;
        let job = b.claim(store).await.remove(0);
        let told = "the engine of the node b does not answer: gone";
        assert_eq!(b.give_up(store, &job).await, (OperationCode::DockerUnavailable, told.into()));
        beat(store, "b", &[], None).await;
        db.pass_ms(2_000).await;
        store.promote_due().await.expect("promotes");
        assert_eq!(b.work(store).await, ["model"], "by itself, once the engine is back");
        sound(store).await;
    })
    .await;
}

#[tokio::test]
async fn r1_a_runtime_that_no_node_may_take_says_why_and_goes_by_itself() {
    on_both(async |db| {
        let store = &db.store;
        beat(store, "a", &[("gpu", "a100")], Some(1)).await;
        declare(store, "model", &[("gpu", "h100")]).await;
        let Requested::Accepted { operation, .. } = ask(store, "model", OperationKind::Start).await else {
            panic!("it waits")
        };
        let a = Node::new(store, "a").await;
        let job = a.claim(store).await.remove(0);
        let why = (OperationCode::ServiceUnavailable, "no node has gpu=h100".to_owned());
        assert_eq!(a.give_up(store, &job).await, why);
        let told = store.operation(T, operation).await.expect("reads").expect("is there");
        assert_eq!((told.error_code, told.error_message), (Some(why.0), Some(why.1)));
        // A node that has it comes. Whoever takes the job gives it to that one.
        beat(store, "c", &[("gpu", "h100")], Some(1)).await;
        let c = Node::new(store, "c").await;
        db.pass_ms(2_000).await;
        store.promote_due().await.expect("promotes");
        let job = a.claim(store).await.remove(0);
        assert!(matches!(a.begin(store, &job).await, Begun::Elsewhere));
        assert_eq!(node_of(store, "model").await.as_deref(), Some("c"));
        a.release(store, &job).await;
        assert_eq!(a.claim(store).await.len(), 0, "it is not for a any more");
        assert_eq!(c.work(store).await, ["model"]);
        let lines = lines(store, "model").await;
        assert_eq!(lines.len(), 2, "a try that failed and one that did not: {lines:?}");
        sound(store).await;
    })
    .await;
}

#[tokio::test]
async fn r1_a_runtime_waits_for_a_slot_of_its_own_node() {
    on_both(async |db| {
        let store = &db.store;
        beat(store, "a", &[], Some(1)).await;
        let a = Node::new(store, "a").await;
        for name in ["first", "second"] {
            declare(store, name, &[]).await;
        }
        ask(store, "first", OperationKind::Start).await;
        assert_eq!(a.work(store).await, ["first"]);
        ask(store, "second", OperationKind::Start).await;
        assert_eq!(node_of(store, "second").await, None, "there is no room for it");
        ask(store, "first", OperationKind::Stop).await;
        let full = (OperationCode::ServiceUnavailable, "all slots are taken: 1 of 1 on a".to_owned());
        let mut jobs = a.claim(store).await;
        assert_eq!(a.give_up(store, &jobs.remove(0)).await, full);
        let Begun::Go(line, _) = a.begin(store, &jobs[0]).await else { panic!("a stop needs no slot") };
        a.end(store, &jobs[0], &line, Change::Stopped).await;
        beat(store, "a", &[], Some(1)).await;
        db.pass_ms(2_000).await;
        store.promote_due().await.expect("promotes");
        assert_eq!(a.work(store).await, ["second"], "once the first has stopped");
        // The first is bound to a and waits for it.
        ask(store, "first", OperationKind::Start).await;
        let job = a.claim(store).await.remove(0);
        assert_eq!(a.give_up(store, &job).await, full);
        ask(store, "second", OperationKind::Restart).await;
        assert_eq!(a.work(store).await, ["second"], "what runs has its slot");
        sound(store).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r1_two_nodes_at_once_do_not_both_take_the_last_slot() {
    on_postgres(async |db| {
        let (here, there) = (db.store.clone(), db.another_node().await);
        beat(&here, "a", &[], Some(1)).await;
        beat(&here, "b", &[], Some(2)).await;
        let names: Vec<String> = (0..12).map(|number| format!("model-{number}")).collect();
        for name in &names {
            declare(&here, name, &[]).await;
        }
        let mut asking = tokio::task::JoinSet::new();
        for (number, name) in names.iter().enumerate() {
            let (store, name) = (if number % 2 == 0 { here.clone() } else { there.clone() }, name.clone());
            asking.spawn(async move { ask(&store, &name, OperationKind::Start).await });
        }
        for requested in asking.join_all().await {
            assert!(matches!(requested, Requested::Accepted { .. }), "who finds no room waits: {requested:?}");
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
        // Who chose a slot that another took meanwhile waits, so one may be left over.
        assert!(on_a <= 1 && (1..=2).contains(&(once.len() - on_a)), "a has one slot, b two: {once:?}");
        // Those that wait are begun by both nodes at once, and share what is left.
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
        sound(&here).await;
    })
    .await;
}
