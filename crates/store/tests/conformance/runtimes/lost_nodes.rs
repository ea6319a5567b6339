//! Runtimes of a lost node: they wait for the node, or move to another one if they are movable.

use domain::RuntimeName;
use domain::queue::why::Reason;
use domain::runtimes::{OperationCode, OperationKind, OperationSource, RuntimeStatus};
use store::Store;
use store::fleet::timeline::list::TimelineOf;
use store::runtimes::begin::BeginOutcome;
use store::runtimes::operate::ContainerChange;
use store::runtimes::relocate::Moved;
use testkit::on_both;

use crate::runtimes::placement::{BEAT_AHEAD_MS, Node, beat, declare_as, operations_of, request_operation, runtime};
use crate::support::*;

/// Creates two nodes and a runtime that runs on `a`.
async fn running_on_a(store: &Store, movable: bool) -> (Node, Node) {
    beat(store, "a", &[], None).await;
    let (a, b) = (Node::new(store, "a").await, Node::new(store, "b").await);
    declare_as(store, "model", |spec| spec.movable = movable).await;
    request_operation(store, "model", OperationKind::Start).await;
    assert_eq!(a.work(store).await, ["model"]);
    beat(store, "b", &[], None).await;
    (a, b)
}

/// Parses the seconds of silence from a message that starts with `prefix`. They include the run time of the test.
fn silent_s(message: &str, prefix: &str) -> i64 {
    let seconds = message.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(" s"));
    seconds.and_then(|seconds| seconds.parse().ok()).unwrap_or_else(|| panic!("{message}"))
}

/// Requirement R5.
#[tokio::test]
async fn a_movable_runtime_moves_to_another_node_once_its_own_is_lost() {
    on_both(async |db| {
        let store = &db.store;
        let (a, b) = running_on_a(store, true).await;
        db.pass_ms(BEAT_AHEAD_MS + 20_000).await;
        beat(store, "b", &[], None).await;
        assert!(store.evacuate_lost_nodes(60).await.expect("evacuates").is_empty(), "the node may still return");
        db.pass_ms(41_000).await;
        beat(store, "b", &[], None).await;
        let moved = store.evacuate_lost_nodes(60).await.expect("moves");
        assert_eq!(moved.iter().map(|moved| moved.to.as_str()).collect::<Vec<_>>(), ["b"]);
        assert!(store.evacuate_lost_nodes(60).await.expect("evacuates").is_empty(), "once");
        let now = runtime(store, "model").await;
        assert_eq!((now.node.as_deref(), now.status), (Some("b"), RuntimeStatus::Removed));
        assert_eq!((now.container_id, now.endpoint), (None, None), "the container of a is not the current one");
        let record = operations_of(store, "model").await.remove(0);
        assert_eq!((record.kind, record.source), (OperationKind::Start, OperationSource::AutoReconcile));
        let message = record.source_ref.expect("records the reason");
        assert!((61..120).contains(&silent_s(&message, "moved from a to b: a has been silent for ")), "{message}");
        let past = store.timeline(T, TimelineOf::Runtime("model".into()), None, 10).await.expect("reads");
        let moved = past.iter().find(|item| item.event == "moved").expect("is on the timeline");
        let detail = moved.detail.as_deref().expect("with from and to");
        assert!(detail.contains(r#""from":"a""#) && detail.contains(r#""to":"b""#), "{detail}");
        // Node a returns while b works. It no longer runs the operation.
        beat(store, "a", &[], None).await;
        assert_eq!(a.claim(store).await.len(), 0);
        assert_eq!(b.work(store).await, ["model"]);
        assert_eq!(runtime(store, "model").await.container_id.as_deref(), Some("model on b"));
        assert_counters_match(store).await;
    })
    .await;
}

/// Requirement R5.
#[tokio::test]
async fn an_operation_of_a_lost_node_is_completed_once_by_another_node() {
    on_both(async |db| {
        let store = &db.store;
        beat(store, "a", &[], None).await;
        let (a, b) = (Node::new(store, "a").await, Node::new(store, "b").await);
        declare_as(store, "model", |spec| spec.movable = true).await;
        request_operation(store, "model", OperationKind::Start).await;
        let job = a.claim(store).await.remove(0);
        let BeginOutcome::Proceed(record, _) = a.begin(store, &job).await else { panic!("the operation begins") };
        // The worker's lease does not expire in this test, so the job is released by hand.
        a.release(store, &job).await;
        db.pass_ms(BEAT_AHEAD_MS + 61_000).await;
        beat(store, "b", &[], None).await;
        assert_eq!(store.evacuate_lost_nodes(60).await.expect("moves").len(), 1);
        let again = b.claim(store).await.remove(0);
        assert_eq!(again.id, job.id, "the same operation, on the other node");
        let BeginOutcome::Proceed(same, model) = b.begin(store, &again).await else { panic!("the operation begins") };
        assert_eq!(same.id, record.id);
        a.report(store, &record, ContainerChange::Stopped).await;
        assert_eq!(operations_of(store, "model").await[0].finished_at, None, "the report of a is ignored");
        b.end(store, &again, &same, b.started(&model)).await;
        assert_eq!(runtime(store, "model").await.container_id.as_deref(), Some("model on b"));
        assert_eq!(operations_of(store, "model").await.len(), 1);
        assert_counters_match(store).await;
    })
    .await;
}

/// Requirement R5.
#[tokio::test]
async fn a_runtime_that_is_not_movable_stays_until_it_is_moved_manually() {
    on_both(async |db| {
        let store = &db.store;
        let (a, b) = running_on_a(store, false).await;
        let name = RuntimeName::stored("model");
        let refused = store.move_runtime(T, &name, None, "ann".into()).await.expect("answers");
        assert!(
            matches!(refused, Moved::Refused { code: OperationCode::Conflict, .. }),
            "a running runtime cannot be moved: {refused:?}"
        );
        request_operation(store, "model", OperationKind::Restart).await;
        a.die(store).await;
        db.pass_ms(BEAT_AHEAD_MS + 120_000).await;
        beat(store, "b", &[], None).await;
        assert!(store.evacuate_lost_nodes(60).await.expect("evacuates").is_empty());
        let waiting = operations_of(store, "model").await[0].job.expect("has a job");
        let why = store.why(T, waiting).await.expect("answers").expect("waits");
        assert_eq!(why.reason, Reason::NoWorker);
        let seconds = silent_s(&why.detail, "the operation's node a has been silent for ");
        assert!((120..180).contains(&seconds), "{}", why.detail);
        let rejected = store.move_runtime(T, &name, Some("c".into()), "ann".into()).await.expect("answers");
        let expected = Moved::Refused {
            code: OperationCode::ServiceUnavailable,
            message: "node c does not drive an engine now".into(),
        };
        assert_eq!(rejected, expected);
        let moved = store.move_runtime(T, &name, Some("b".into()), "ann".into()).await.expect("moves");
        assert_eq!(moved, Moved::To("b".into()));
        assert_eq!(b.work(store).await, ["model"], "the restart that waited for a is done on b");
        assert_eq!(runtime(store, "model").await.container_id.as_deref(), Some("model on b"));
        assert_counters_match(store).await;
    })
    .await;
}
