//! Observations of containers: which ones are accepted and what they trigger.

use domain::RuntimeName;
use domain::runtimes::{HealthSource, HealthStatus, Observation, OperationKind, OperationSource};
use domain::triggers::trigger::Source;
use store::runtimes::request::{NewOperation, Requested};
use testkit::{Database, on_both};

use crate::runtimes::placement::{Node, beat, declare, runtime};
use crate::support::*;
use crate::triggers::declarations::new;

async fn new_node(db: &Database) -> Node {
    beat(&db.store, "a", &[], None).await;
    declare(&db.store, "model", &[]).await;
    Node::new(&db.store, "a").await
}

/// Requests an operation at this trigger depth and completes it.
async fn operate(db: &Database, node: &Node, kind: OperationKind, depth: i32) {
    let (source, actor) = (OperationSource::Api, "ann".into());
    let new = NewOperation { kind, source, source_ref: None, image: None, actor, depth, on: None };
    let requested = db.store.request_operation(T, &RuntimeName::stored("model"), new).await.expect("answers");
    assert!(matches!(requested, Requested::Accepted { .. }), "{requested:?}");
    assert_eq!(node.work(&db.store).await, ["model"]);
}

/// Records an observation by a node that read the runtime `of`. Returns true if it changed the stored health.
async fn observe(db: &Database, status: HealthStatus, of: &store::runtimes::Runtime) -> bool {
    db.pass_ms(1_000).await;
    let (source, observed_at) = (HealthSource::Probe, db.clock.now());
    let observation = Observation { status, source, details: String::new(), observed_at };
    db.store.observe_runtime(T, &of.name, "model on a", of.started_at, observation).await.expect("observes")
}

/// Requirement R4.
#[tokio::test]
async fn a_health_observation_of_an_earlier_start_is_ignored() {
    on_both(async |db| {
        let node = new_node(&db).await;
        operate(&db, &node, OperationKind::Start, 0).await;
        let before = runtime(&db.store, "model").await;
        db.pass_ms(1_000).await;
        operate(&db, &node, OperationKind::Restart, 0).await;
        let after = runtime(&db.store, "model").await;
        assert!(!observe(&db, HealthStatus::Exited, &before).await, "the exit belongs to an earlier start");
        assert!(runtime(&db.store, "model").await.health.is_none());
        assert!(observe(&db, HealthStatus::Healthy, &after).await);
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement T5.
#[tokio::test]
async fn health_events_keep_the_depth_of_the_start_until_first_healthy() {
    on_both(async |db| {
        let node = new_node(&db).await;
        let trigger_id = db.store.new_trigger_id();
        let trigger = new("hears", Source::Runtime, r#"{"name": "model"}"#);
        db.store.create_trigger(T, trigger_id, trigger, "ann").await.expect("answers");
        for (depth, kind) in [(3, OperationKind::Start), (5, OperationKind::Restart)] {
            operate(&db, &node, kind, depth).await;
            let model = runtime(&db.store, "model").await;
            for status in [HealthStatus::ProbeFailed, HealthStatus::Healthy, HealthStatus::ProbeFailed] {
                assert!(observe(&db, status, &model).await, "{status:?}");
            }
            assert!(observe(&db, HealthStatus::Healthy, &model).await);
        }
        let depths = "select cast(depth as text) from outbox where op = 'health' order by id";
        assert_eq!(texts(&db.store, depths, depths).await, ["3", "3", "0", "0", "5", "5", "0", "0"]);
    })
    .await;
}
