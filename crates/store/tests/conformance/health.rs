//! What is believed of what somebody saw of a container, and what it leads to (R4, T5).

use domain::RuntimeName;
use domain::runtime::{HealthSource, HealthStatus, Observation, OperationKind, OperationSource};
use domain::trigger::Source;
use store::runtimes::request::{NewOperation, Requested};
use testkit::{Database, on_both};

use crate::placement::{Node, beat, declare, runtime};
use crate::support::*;
use crate::triggers::new;

async fn a_node(db: &Database) -> Node {
    beat(&db.store, "a", &[], None).await;
    declare(&db.store, "model", &[]).await;
    Node::new(&db.store, "a").await
}

/// Does it, as `depth` triggers led to it.
async fn operate(db: &Database, node: &Node, kind: OperationKind, depth: i32) {
    let (source, actor) = (OperationSource::Api, "ann".into());
    let new = NewOperation { kind, source, source_ref: None, image: None, actor, depth, on: None };
    let asked = db.store.request_operation(T, &RuntimeName::stored("model"), new).await.expect("answers");
    assert!(matches!(asked, Requested::Accepted { .. }), "{asked:?}");
    assert_eq!(node.work(&db.store).await, ["model"]);
}

/// Whether it is news that the container was seen so by one who looked at the runtime as it was then.
async fn seen(db: &Database, status: HealthStatus, of: &store::runtimes::Runtime) -> bool {
    db.pass_ms(1_000).await;
    let (source, observed_at) = (HealthSource::Probe, db.clock.now());
    let seen = Observation { status, source, details: String::new(), observed_at };
    db.store.observe_runtime(T, &of.name, "model on a", of.started_at, seen).await.expect("observes")
}

#[tokio::test]
async fn r4_what_was_seen_of_an_earlier_start_is_no_news() {
    on_both(async |db| {
        let node = a_node(&db).await;
        operate(&db, &node, OperationKind::Start, 0).await;
        let before = runtime(&db.store, "model").await;
        db.pass_ms(1_000).await;
        operate(&db, &node, OperationKind::Restart, 0).await;
        let after = runtime(&db.store, "model").await;
        assert!(!seen(&db, HealthStatus::Exited, &before).await, "whoever saw it exit saw the restart");
        assert!(runtime(&db.store, "model").await.health.is_none());
        assert!(seen(&db, HealthStatus::Healthy, &after).await);
        sound(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn t5_until_it_is_well_for_the_first_time_the_health_of_a_container_comes_from_its_start() {
    on_both(async |db| {
        let node = a_node(&db).await;
        let hears = db.store.new_trigger_id();
        let trigger = new("hears", Source::Runtime, r#"{"name": "model"}"#);
        db.store.create_trigger(T, hears, trigger, "ann").await.expect("answers");
        for (depth, kind) in [(3, OperationKind::Start), (5, OperationKind::Restart)] {
            operate(&db, &node, kind, depth).await;
            let model = runtime(&db.store, "model").await;
            for status in [HealthStatus::ProbeFailed, HealthStatus::Healthy, HealthStatus::ProbeFailed] {
                assert!(seen(&db, status, &model).await, "{status:?}");
            }
            assert!(seen(&db, HealthStatus::Healthy, &model).await);
        }
        let depths = "select cast(depth as text) from outbox where op = 'health' order by id";
        assert_eq!(texts(&db.store, depths, depths).await, ["3", "3", "0", "0", "5", "5", "0", "0"]);
    })
    .await;
}
