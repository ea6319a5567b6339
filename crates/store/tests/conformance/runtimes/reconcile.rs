//! Events of a container that disappeared unobserved.

use domain::RuntimeName;
use domain::runtimes::{HealthSource, HealthStatus, Observation, OperationKind, RuntimeStatus};
use domain::triggers::trigger::Source;
use store::Store;
use store::triggers::put::TriggerPut;
use testkit::{Database, on_both};

use crate::runtimes::placement::{Node, beat, declare, request_operation, runtime};
use crate::support::*;
use crate::triggers::declarations::{new, waiting};

/// Creates a healthy runtime that runs on `a`.
async fn running(db: &Database) -> (Node, RuntimeName) {
    let store = &db.store;
    beat(store, "a", &[], None).await;
    let a = Node::new(store, "a").await;
    declare(store, "model", &[]).await;
    request_operation(store, "model", OperationKind::Start).await;
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

/// Requirement R4.
#[tokio::test]
async fn a_container_missing_without_an_operation_has_disappeared() {
    on_both(async |db| {
        let store = &db.store;
        let (_a, name) = running(&db).await;
        let trigger_id = store.new_trigger_id();
        let trigger = new("hears", Source::Runtime, r#"{"name": "model", "health": "container_disappeared"}"#);
        assert_eq!(
            store.create_trigger(T, trigger_id, trigger, "ann").await.expect("answers"),
            TriggerPut::Done(trigger_id)
        );
        assert!(dispose(store, &name).await);
        let model = runtime(store, "model").await;
        assert_eq!((model.status, model.container_id), (RuntimeStatus::Removed, None));
        assert_eq!(model.health.map(|health| health.status), Some(HealthStatus::ContainerDisappeared));
        assert_eq!(past(store, &name).await, [HealthStatus::ContainerDisappeared, HealthStatus::Healthy]);
        assert_eq!(waiting(store).await, [trigger_id]);
        assert!(!dispose(store, &name).await, "once");
        assert_eq!(past(store, &name).await.len(), 2);
        assert_counters_match(store).await;
    })
    .await;
}

/// Requirement R4.
#[tokio::test]
async fn a_stopped_container_does_not_count_as_disappeared() {
    on_both(async |db| {
        let store = &db.store;
        let (a, name) = running(&db).await;
        request_operation(store, "model", OperationKind::Stop).await;
        assert_eq!(a.work(store).await, ["model"]);
        assert!(dispose(store, &name).await);
        let model = runtime(store, "model").await;
        assert_eq!((model.status, model.health), (RuntimeStatus::Removed, None));
        assert_eq!(past(store, &name).await, [HealthStatus::Healthy]);
        assert_counters_match(store).await;
    })
    .await;
}
