//! In which order the operations on one runtime take effect (R3).

use domain::runtime::{ImageRef, OperationCode, OperationKind, RuntimeStatus};
use store::Store;
use store::jobs::claim::ClaimedJob;
use store::runtimes::Outcome;
use store::runtimes::begin::Begun;
use testkit::{Database, on_both};

use crate::placement::{Node, ask, beat, declare, declare_as, lines, runtime};
use crate::support::*;

/// A start that found no engine and waits to be tried again.
async fn start_without_an_engine(store: &Store) -> Node {
    beat(store, "a", &[], None).await;
    let a = Node::new(store, "a").await;
    declare(store, "model", &[]).await;
    ask(store, "model", OperationKind::Start).await;
    let job = a.claim(store).await.remove(0);
    let Begun::Go(line, _) = a.begin(store, &job).await else { panic!("it begins") };
    a.fail(store, &job, &line, OperationCode::DockerUnavailable, "the engine is away").await;
    a
}

/// Its time has come again.
async fn tried_again(db: &Database, a: &Node) -> ClaimedJob {
    db.pass_ms(2_000).await;
    beat(&db.store, "a", &[], None).await;
    db.store.promote_due().await.expect("promotes");
    a.claim(&db.store).await.remove(0)
}

#[tokio::test]
async fn r3_what_was_asked_for_first_does_not_undo_what_was_asked_for_last() {
    on_both(async |db| {
        let store = &db.store;
        let a = start_without_an_engine(store).await;
        ask(store, "model", OperationKind::Stop).await;
        assert_eq!(a.work(store).await, ["model"], "the engine is back, and the stop does not wait");
        let job = tried_again(&db, &a).await;
        let Begun::Overtaken(line, later) = a.begin(store, &job).await else { panic!("the last word was stop") };
        assert_eq!((line.kind, later), (OperationKind::Start, OperationKind::Stop));
        a.fail(store, &job, &line, OperationCode::Conflict, "overtaken").await;
        let model = runtime(store, "model").await;
        assert_eq!((model.status, model.in_flight), (RuntimeStatus::Stopped, None));
        let lines = lines(store, "model").await;
        let done: Vec<_> = lines.iter().filter(|line| line.outcome == Some(Outcome::Success)).collect();
        assert_eq!((lines.len(), done.len(), done[0].kind), (3, 1, OperationKind::Stop), "{lines:?}");
        sound(store).await;
    })
    .await;
}

#[tokio::test]
async fn r3_what_was_asked_for_last_and_not_done_is_in_nobodys_way() {
    on_both(async |db| {
        let store = &db.store;
        let a = start_without_an_engine(store).await;
        ask(store, "model", OperationKind::Restart).await;
        let job = a.claim(store).await.remove(0);
        let Begun::Go(line, _) = a.begin(store, &job).await else { panic!("it begins") };
        a.fail(store, &job, &line, OperationCode::ImageNotFound, "there is no such image").await;
        let job = tried_again(&db, &a).await;
        let Begun::Go(line, model) = a.begin(store, &job).await else { panic!("nothing was done since") };
        a.end(store, &job, &line, a.started(&model)).await;
        assert_eq!(runtime(store, "model").await.status, RuntimeStatus::Running);
        // An operation does not stand in the way of the next one.
        ask(store, "model", OperationKind::Stop).await;
        assert_eq!(a.work(store).await, ["model"]);
        assert_eq!(runtime(store, "model").await.status, RuntimeStatus::Stopped);
        sound(store).await;
    })
    .await;
}

#[tokio::test]
async fn r3_what_was_declared_while_a_start_was_under_way_stays_declared() {
    on_both(async |db| {
        let store = &db.store;
        let a = start_without_an_engine(store).await;
        db.pass_ms(1_000).await;
        declare_as(store, "model", |spec| spec.image = ImageRef::stored("model:1.2.4")).await;
        let job = tried_again(&db, &a).await;
        let Begun::Go(line, mut begun) = a.begin(store, &job).await else { panic!("it begins") };
        begun.spec.image = ImageRef::stored("model:1.2.3");
        a.end(store, &job, &line, a.started(&begun)).await;
        let model = runtime(store, "model").await;
        let (declared, runs) = (model.spec.image.to_string(), model.current_image);
        assert_eq!((declared.as_str(), runs.as_deref()), ("model:1.2.4", Some("model:1.2.3")));
        sound(store).await;
    })
    .await;
}

#[tokio::test]
async fn r3_a_start_with_a_secret_that_does_not_open_fails_and_a_stop_does_not_need_it() {
    on_both(async |db| {
        let store = &db.store;
        beat(store, "a", &[], None).await;
        let a = Node::new(store, "a").await;
        declare_as(store, "model", |spec| drop(spec.env.insert("KEY".into(), "sealed.1.nothing".into()))).await;
        ask(store, "model", OperationKind::Start).await;
        let job = a.claim(store).await.remove(0);
        let Begun::Unopened(line, why) = a.begin(store, &job).await else { panic!("it opens") };
        a.fail(store, &job, &line, OperationCode::StartConfigInvalid, &why).await;
        assert_eq!(runtime(store, "model").await.in_flight, None);
        ask(store, "model", OperationKind::Stop).await;
        assert_eq!(a.work(store).await, ["model"]);
        sound(store).await;
    })
    .await;
}
