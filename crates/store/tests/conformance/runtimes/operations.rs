//! The order in which operations on one runtime take effect.

use domain::runtimes::{ImageRef, OperationCode, OperationKind, RuntimeStatus};
use store::Store;
use store::queue::claim::ClaimedJob;
use store::runtimes::OperationOutcome;
use store::runtimes::begin::BeginOutcome;
use testkit::{Database, on_both};

use crate::runtimes::placement::{Node, beat, declare, declare_as, operations_of, request_operation, runtime};
use crate::support::*;

/// Requests a start that finds no engine and waits for its retry.
async fn start_without_an_engine(store: &Store) -> Node {
    beat(store, "a", &[], None).await;
    let a = Node::new(store, "a").await;
    declare(store, "model", &[]).await;
    request_operation(store, "model", OperationKind::Start).await;
    let job = a.claim(store).await.remove(0);
    let BeginOutcome::Proceed(record, _) = a.begin(store, &job).await else { panic!("the operation begins") };
    a.fail(store, &job, &record, OperationCode::DockerUnavailable, "the engine is away").await;
    a
}

/// Advances the clock to the retry and claims it.
async fn tried_again(db: &Database, a: &Node) -> ClaimedJob {
    db.pass_ms(2_000).await;
    beat(&db.store, "a", &[], None).await;
    db.store.promote_due().await.expect("promotes");
    a.claim(&db.store).await.remove(0)
}

/// Requirement R3.
#[tokio::test]
async fn an_earlier_operation_does_not_undo_a_later_one() {
    on_both(async |db| {
        let store = &db.store;
        let a = start_without_an_engine(store).await;
        request_operation(store, "model", OperationKind::Stop).await;
        assert_eq!(a.work(store).await, ["model"], "the engine is back and the stop runs first");
        let job = tried_again(&db, &a).await;
        let BeginOutcome::Superseded(record, later) = a.begin(store, &job).await else {
            panic!("the stop supersedes the start")
        };
        assert_eq!((record.kind, later), (OperationKind::Start, OperationKind::Stop));
        a.fail(store, &job, &record, OperationCode::Conflict, "overtaken").await;
        let model = runtime(store, "model").await;
        assert_eq!((model.status, model.in_flight), (RuntimeStatus::Stopped, None));
        let records = operations_of(store, "model").await;
        let done: Vec<_> = records.iter().filter(|record| record.outcome == Some(OperationOutcome::Success)).collect();
        assert_eq!((records.len(), done.len(), done[0].kind), (3, 1, OperationKind::Stop), "{records:?}");
        assert_counters_match(store).await;
    })
    .await;
}

/// Requirement R3.
#[tokio::test]
async fn a_failed_later_operation_does_not_block_an_earlier_one() {
    on_both(async |db| {
        let store = &db.store;
        let a = start_without_an_engine(store).await;
        request_operation(store, "model", OperationKind::Restart).await;
        let job = a.claim(store).await.remove(0);
        let BeginOutcome::Proceed(record, _) = a.begin(store, &job).await else { panic!("the operation begins") };
        a.fail(store, &job, &record, OperationCode::ImageNotFound, "there is no such image").await;
        let job = tried_again(&db, &a).await;
        let BeginOutcome::Proceed(record, model) = a.begin(store, &job).await else { panic!("no later operation ran") };
        a.end(store, &job, &record, a.started(&model)).await;
        assert_eq!(runtime(store, "model").await.status, RuntimeStatus::Running);
        // A failed operation does not block the next one.
        request_operation(store, "model", OperationKind::Stop).await;
        assert_eq!(a.work(store).await, ["model"]);
        assert_eq!(runtime(store, "model").await.status, RuntimeStatus::Stopped);
        assert_counters_match(store).await;
    })
    .await;
}

/// Requirement R3.
#[tokio::test]
async fn a_declaration_during_a_start_is_preserved() {
    on_both(async |db| {
        let store = &db.store;
        let a = start_without_an_engine(store).await;
        db.pass_ms(1_000).await;
        declare_as(store, "model", |spec| spec.image = ImageRef::stored("model:1.2.4")).await;
        let job = tried_again(&db, &a).await;
        let BeginOutcome::Proceed(record, mut begun) = a.begin(store, &job).await else {
            panic!("the operation begins")
        };
        begun.spec.image = ImageRef::stored("model:1.2.3");
        a.end(store, &job, &record, a.started(&begun)).await;
        let model = runtime(store, "model").await;
        let (declared, runs) = (model.spec.image.to_string(), model.current_image);
        assert_eq!((declared.as_str(), runs.as_deref()), ("model:1.2.4", Some("model:1.2.3")));
        assert_counters_match(store).await;
    })
    .await;
}

/// Requirement R3.
#[tokio::test]
async fn an_unreadable_secret_fails_a_start_but_not_a_stop() {
    on_both(async |db| {
        let store = &db.store;
        beat(store, "a", &[], None).await;
        let a = Node::new(store, "a").await;
        declare_as(store, "model", |spec| drop(spec.env.insert("KEY".into(), "sealed.1.nothing".into()))).await;
        request_operation(store, "model", OperationKind::Start).await;
        let job = a.claim(store).await.remove(0);
        let BeginOutcome::SecretsUnreadable(record, why) = a.begin(store, &job).await else {
            panic!("the secrets open")
        };
        a.fail(store, &job, &record, OperationCode::StartConfigInvalid, &why).await;
        assert_eq!(runtime(store, "model").await.in_flight, None);
        request_operation(store, "model", OperationKind::Stop).await;
        assert_eq!(a.work(store).await, ["model"]);
        assert_counters_match(store).await;
    })
    .await;
}
