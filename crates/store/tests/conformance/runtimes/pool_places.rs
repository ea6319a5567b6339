//! Placement of pools: a pool and its runtimes run on one node.

use domain::runtimes::pool::{Handler, Member, PoolSpec, Stay};
use domain::runtimes::{OperationCode, OperationKind, OperationSource, Placement, RuntimeStatus};
use domain::{Label, RuntimeName};
use store::Store;
use store::runtimes::nodes::NodeOffer;
use store::runtimes::pools::put::PoolPut;
use store::runtimes::request::{NewOperation, Requested};
use testkit::{name, on_both};

use crate::runtimes::placement::{BEAT_AHEAD_MS, Node, beat, declare_as, labels, runtime};
use crate::support::*;

const GPU: &[(&str, &str)] = &[("gpu", "a100")];

pub(crate) async fn pool(store: &Store, members: &[&str], wanted: &[(&str, &str)]) {
    let member =
        |of: &&str| Member { affinity: Label::stored(of), runtime: RuntimeName::stored(of), stay: Stay::AsNeeded };
    let spec = PoolSpec {
        slots: 1,
        memory_mb: None,
        members: members.iter().map(member).collect(),
        queue: name("gpu"),
        starvation_s: None,
        idle_stop_s: None,
        handler: Handler { path: "/".into(), timeout_s: 60, at_once: 1 },
        placement: Placement { labels: labels(wanted) },
    };
    assert_eq!(store.put_pool(T, name("gpu"), spec, "ann".into()).await.expect("answers"), PoolPut::Done);
}

pub(crate) async fn node_takes_pool(store: &Store, node: &str, has: &[(&str, &str)]) -> bool {
    let offer = NodeOffer { labels: labels(has), slots: None };
    !store.lease_pools(node, &offer).await.expect("takes").is_empty()
}

/// Requests a start on a node, as a pool's slot does.
async fn start_on(store: &Store, of: &str, node: &str) -> Requested {
    let new = NewOperation {
        kind: OperationKind::Start,
        source: OperationSource::AutoScale,
        source_ref: None,
        image: None,
        actor: "pool gpu".into(),
        depth: 0,
        on: Some(node.into()),
    };
    store.request_operation(T, &RuntimeName::stored(of), new).await.expect("answers")
}

/// Requirement R7.
#[tokio::test]
async fn a_pool_runs_on_a_node_with_its_labels_and_runtimes() {
    on_both(async |db| {
        let store = &db.store;
        beat(store, "a", &[], None).await;
        beat(store, "b", GPU, None).await;
        beat(store, "full", &[], Some(0)).await;
        for of in ["x", "y"] {
            declare_as(store, of, |_| {}).await;
        }
        pool(store, &["x", "y"], GPU).await;
        assert!(!node_takes_pool(store, "a", &[]).await, "the node lacks the pool's labels");
        assert!(node_takes_pool(store, "b", GPU).await);
        assert!(matches!(start_on(store, "x", "b").await, Requested::Accepted { .. }));
        assert_eq!(runtime(store, "x").await.node.as_deref(), Some("b"), "members go to the pool's node");
        let Requested::Refused { code, message, .. } = start_on(store, "x", "a").await else {
            panic!("the runtime is on b")
        };
        assert_eq!(
            (code, message.as_str()),
            (OperationCode::Conflict, "the runtime is on node b, but the operation must run on node a")
        );
        let Requested::Refused { code, message, .. } = start_on(store, "y", "full").await else {
            panic!("the node is full")
        };
        let expected = "all slots are taken: 0 of 0 on full";
        assert_eq!(
            (code, message.as_str()),
            (OperationCode::ServiceUnavailable, expected),
            "rejected at once, and the pool backs off"
        );
        // Without labels any node may run the pool, except for the members that b already runs.
        pool(store, &["x", "y"], &[]).await;
        store.release_pools("b").await.expect("leaves");
        assert!(!node_takes_pool(store, "a", &[]).await);
        assert!(node_takes_pool(store, "b", GPU).await);
        assert_counters_match(store).await;
    })
    .await;
}

/// For example, a pool that a newer version stored.
/// Requirement R7.
#[tokio::test]
async fn an_undecodable_pool_does_not_affect_other_pools() {
    on_both(async |db| {
        let store = &db.store;
        beat(store, "a", &[], None).await;
        declare_as(store, "x", |_| {}).await;
        pool(store, &["x"], &[]).await;
        let newer = r#"insert into pools (tenant, name, spec, state, principal, created_at, updated_at)
                       select tenant, 'newer', '{"slots": "many"}', state, principal, created_at, updated_at from pools"#;
        run_sql(store, newer).await.expect("writes");
        assert!(node_takes_pool(store, "a", &[]).await);
        let taken = number(store, "select count(*) from pools where node = 'a'").await;
        assert_eq!(taken, 1, "it is left to a node that can decode it");
    })
    .await;
}

/// Requirement R7.
#[tokio::test]
async fn the_members_of_a_pool_are_moved_together_or_not_at_all() {
    on_both(async |db| {
        let store = &db.store;
        beat(store, "a", &[], None).await;
        let a = Node::new(store, "a").await;
        declare_as(store, "x", |spec| spec.movable = true).await;
        declare_as(store, "y", |_| {}).await;
        pool(store, &["x", "y"], &[]).await;
        assert!(node_takes_pool(store, "a", &[]).await);
        for of in ["x", "y"] {
            start_on(store, of, "a").await;
        }
        assert_eq!(a.work(store).await.len(), 2);
        db.pass_ms(BEAT_AHEAD_MS + 61_000).await;
        beat(store, "b", &[], None).await;
        assert!(
            store.evacuate_lost_nodes(60).await.expect("evacuates").is_empty(),
            "y may not be moved, so x stays with it"
        );
        assert!(!node_takes_pool(store, "b", &[]).await, "so does the pool");
        declare_as(store, "y", |spec| spec.movable = true).await;
        assert_eq!(store.evacuate_lost_nodes(60).await.expect("moves").len(), 2);
        for of in ["x", "y"] {
            let moved = runtime(store, of).await;
            assert_eq!((moved.node.as_deref(), moved.status), (Some("b"), RuntimeStatus::Removed));
            assert_eq!(moved.in_flight, None, "the pool starts it on demand");
        }
        assert!(node_takes_pool(store, "b", &[]).await, "the pool follows its members");
        assert_counters_match(store).await;
    })
    .await;
}
