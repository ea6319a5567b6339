//! What is told of a container that is gone without anybody having seen it go (R4, R5).

use domain::RuntimeName;
use domain::runtime::{HealthSource, HealthStatus, Observation, OperationKind, RuntimeStatus};
use domain::trigger::Source;
use store::Store;
use store::triggers::put::Put;
use testkit::{Database, on_both};

use crate::placement::{Node, ask, beat, declare, runtime};
use crate::support::*;
use crate::triggers::{new, waiting};

/// A runtime that runs on `a` and is well.
async fn running(db: &Database) -> (Node, RuntimeName) {
    let store = &db.store;
    beat(store, "a", &[], None).await;
    let a = Node::new(store, "a").await;
    declare(store, "model", &[]).await;
    ask(store, "model", OperationKind::Start).await;
    assert_eq!(a.work(store).await, ["model"]);
    let name = RuntimeName::stored("model");
    let well = Observation {
        status: HealthStatus::Healthy,
        source: HealthSource::Inspect,
        details: "the container runs".into(),
        observed_at: db.clock.now(),
    };
    assert!(store.observe_runtime(T, &name, "model on a", None, well).await.expect("observes"));
    db.pass_ms(1_000).await;
    (a, name)
}

async fn dispose(store: &Store, name: &RuntimeName) -> bool {
    store.dispose_of_record(T, name, "model on a", "the record's container is gone").await.expect("disposes")
}

async fn past(store: &Store, name: &RuntimeName) -> Vec<HealthStatus> {
    let past = store.health_history(T, name, None, 10).await.expect("reads");
    past.into_iter().map(|past| past.observation.status).collect()
}

#[tokio::test]
async fn r4_a_container_that_went_while_nobody_looked_has_disappeared() {
    on_both(async |db| {
        let store = &db.store;
        let (_a, name) = running(&db).await;
        let hears = store.new_trigger_id();
        let trigger = new("hears", Source::Runtime, r#"{"name": "model", "health": "container_disappeared"}"#);
        assert_eq!(store.create_trigger(T, hears, trigger, "ann").await.expect("answers"), Put::Done(hears));
        assert!(dispose(store, &name).await);
        let model = runtime(store, "model").await;
        assert_eq!((model.status, model.container_id), (RuntimeStatus::Removed, None));
        assert_eq!(model.health.map(|health| health.status), Some(HealthStatus::ContainerDisappeared));
        assert_eq!(past(store, &name).await, [HealthStatus::ContainerDisappeared, HealthStatus::Healthy]);
        assert_eq!(waiting(store).await, [hears]);
        assert!(!dispose(store, &name).await, "once");
        assert_eq!(past(store, &name).await.len(), 2);
        sound(store).await;
    })
    .await;
}

#[tokio::test]
async fn r4_a_container_that_we_stopped_does_not_disappear() {
    on_both(async |db| {
        let store = &db.store;
        let (a, name) = running(&db).await;
        ask(store, "model", OperationKind::Stop).await;
        assert_eq!(a.work(store).await, ["model"]);
        assert!(dispose(store, &name).await);
        let model = runtime(store, "model").await;
        assert_eq!((model.status, model.health), (RuntimeStatus::Removed, None));
        assert_eq!(past(store, &name).await, [HealthStatus::Healthy]);
        sound(store).await;
    })
    .await;
}
