//! What becomes of the runtimes of a node that is lost: they wait for it, or are moved if they may be (R1, R5).

use domain::RuntimeName;
use domain::runtime::{OperationCode, OperationKind, OperationSource, RuntimeStatus};
use domain::why::Reason;
use store::Store;
use store::runtimes::begin::Begun;
use store::runtimes::operate::Change;
use store::runtimes::relocate::Moved;
use store::timeline::list::TimelineOf;
use testkit::on_both;

use crate::placement::{BEATEN_AHEAD_MS, Node, ask, beat, declare_as, lines, runtime};
use crate::support::*;

/// Two nodes, and a runtime that runs on `a`.
async fn running_on_a(store: &Store, movable: bool) -> (Node, Node) {
    beat(store, "a", &[], None).await;
    let (a, b) = (Node::new(store, "a").await, Node::new(store, "b").await);
    declare_as(store, "model", |spec| spec.movable = movable).await;
    ask(store, "model", OperationKind::Start).await;
    assert_eq!(a.work(store).await, ["model"]);
    beat(store, "b", &[], None).await;
    (a, b)
}

/// For how many seconds a node has been silent, by a sentence that begins like this. What the machine took is in it.
fn silent_s(told: &str, begins: &str) -> i64 {
    let seconds = told.strip_prefix(begins).and_then(|rest| rest.strip_suffix(" s"));
    seconds.and_then(|seconds| seconds.parse().ok()).unwrap_or_else(|| panic!("{told}"))
}

#[tokio::test]
async fn r5_a_movable_runtime_is_started_on_another_node_once_its_own_is_lost() {
    on_both(async |db| {
        let store = &db.store;
        let (a, b) = running_on_a(store, true).await;
        db.pass_ms(BEATEN_AHEAD_MS + 20_000).await;
        beat(store, "b", &[], None).await;
        assert!(store.leave_lost_nodes(60).await.expect("looks").is_empty(), "it may come back");
        db.pass_ms(41_000).await;
        beat(store, "b", &[], None).await;
        let moved = store.leave_lost_nodes(60).await.expect("moves");
        assert_eq!(moved.iter().map(|moved| moved.to.as_str()).collect::<Vec<_>>(), ["b"]);
        assert!(store.leave_lost_nodes(60).await.expect("looks").is_empty(), "once");
        let now = runtime(store, "model").await;
        assert_eq!((now.node.as_deref(), now.status), (Some("b"), RuntimeStatus::Removed));
        assert_eq!((now.container_id, now.endpoint), (None, None), "the container of a is not the current one");
        let line = lines(store, "model").await.remove(0);
        assert_eq!((line.kind, line.source), (OperationKind::Start, OperationSource::AutoReconcile));
        let told = line.source_ref.expect("says why");
        assert!((61..120).contains(&silent_s(&told, "moved from a to b: a has been silent for ")), "{told}");
        let past = store.timeline(T, TimelineOf::Runtime("model".into()), None, 10).await.expect("reads");
        let moved = past.iter().find(|item| item.event == "moved").expect("is told");
        let detail = moved.detail.as_deref().expect("with from and to");
        assert!(detail.contains(r#""from":"a""#) && detail.contains(r#""to":"b""#), "{detail}");
        // a comes back while b works, and has nothing to say of it any more.
        beat(store, "a", &[], None).await;
        assert_eq!(a.claim(store).await.len(), 0);
        assert_eq!(b.work(store).await, ["model"]);
        assert_eq!(runtime(store, "model").await.container_id.as_deref(), Some("model on b"));
        sound(store).await;
    })
    .await;
}

#[tokio::test]
async fn r5_what_a_lost_node_was_doing_is_done_by_the_other_and_told_once() {
    on_both(async |db| {
        let store = &db.store;
        beat(store, "a", &[], None).await;
        let (a, b) = (Node::new(store, "a").await, Node::new(store, "b").await);
        declare_as(store, "model", |spec| spec.movable = true).await;
        ask(store, "model", OperationKind::Start).await;
        let job = a.claim(store).await.remove(0);
        let Begun::Go(line, _) = a.begin(store, &job).await else { panic!("it begins") };
        // Its worker's lease is as patient as the test is: the job comes back by hand.
        a.release(store, &job).await;
        db.pass_ms(BEATEN_AHEAD_MS + 61_000).await;
        beat(store, "b", &[], None).await;
        assert_eq!(store.leave_lost_nodes(60).await.expect("moves").len(), 1);
        let again = b.claim(store).await.remove(0);
        assert_eq!(again.id, job.id, "the same operation, on the other node");
        let Begun::Go(same, model) = b.begin(store, &again).await else { panic!("it begins") };
        assert_eq!(same.id, line.id);
        a.tell(store, &line, Change::Stopped).await;
        assert_eq!(lines(store, "model").await[0].finished_at, None, "a has nothing to tell of it any more");
        b.end(store, &again, &same, b.started(&model)).await;
        assert_eq!(runtime(store, "model").await.container_id.as_deref(), Some("model on b"));
        assert_eq!(lines(store, "model").await.len(), 1);
        sound(store).await;
    })
    .await;
}

#[tokio::test]
async fn r5_what_is_not_movable_stays_and_is_moved_by_hand() {
    on_both(async |db| {
        let store = &db.store;
        let (a, b) = running_on_a(store, false).await;
        let name = RuntimeName::stored("model");
        let refused = store.move_runtime(T, &name, None, "ann".into()).await.expect("answers");
        assert!(matches!(refused, Moved::Refused { code: OperationCode::Conflict, .. }), "it runs: {refused:?}");
        ask(store, "model", OperationKind::Restart).await;
        a.die(store).await;
        db.pass_ms(BEATEN_AHEAD_MS + 120_000).await;
        beat(store, "b", &[], None).await;
        assert!(store.leave_lost_nodes(60).await.expect("looks").is_empty());
        let waiting = lines(store, "model").await[0].job.expect("has a job");
        let why = store.why(T, waiting).await.expect("answers").expect("waits");
        assert_eq!(why.reason, Reason::NoWorker);
        let seconds = silent_s(&why.detail, "the node a, which is to do it, has been silent for ");
        assert!((120..180).contains(&seconds), "{}", why.detail);
        let nobody = store.move_runtime(T, &name, Some("c".into()), "ann".into()).await.expect("answers");
        let told = Moved::Refused {
            code: OperationCode::ServiceUnavailable,
            message: "the node c does not drive an engine now".into(),
        };
        assert_eq!(nobody, told);
        let moved = store.move_runtime(T, &name, Some("b".into()), "ann".into()).await.expect("moves");
        assert_eq!(moved, Moved::To("b".into()));
        assert_eq!(b.work(store).await, ["model"], "the restart that waited for a is done on b");
        assert_eq!(runtime(store, "model").await.container_id.as_deref(), Some("model on b"));
        sound(store).await;
    })
    .await;
}
