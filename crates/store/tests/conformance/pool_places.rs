//! Which node runs a pool, and that its runtimes are there too (R7).

use domain::pool::{Handler, Member, PoolSpec, Stay};
use domain::runtime::{OperationCode, OperationKind, OperationSource, Placement, RuntimeStatus};
use domain::{Label, RuntimeName};
use store::Store;
use store::pools::put::PoolPut;
use store::runtimes::nodes::NodeOffer;
use store::runtimes::request::{NewOperation, Requested};
use testkit::{name, on_both};

use crate::placement::{BEATEN_AHEAD_MS, Node, beat, declare_as, labels, runtime};
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

pub(crate) async fn takes(store: &Store, node: &str, has: &[(&str, &str)]) -> bool {
    let offer = NodeOffer { labels: labels(has), slots: None };
    !store.take_pools(node, &offer).await.expect("takes").is_empty()
}

/// As a pool's slot asks.
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

#[tokio::test]
async fn r7_a_pool_is_run_where_its_labels_and_its_runtimes_are() {
    on_both(async |db| {
        let store = &db.store;
        beat(store, "a", &[], None).await;
        beat(store, "b", GPU, None).await;
        beat(store, "full", &[], Some(0)).await;
        for of in ["x", "y"] {
            declare_as(store, of, |_| {}).await;
        }
        pool(store, &["x", "y"], GPU).await;
        assert!(!takes(store, "a", &[]).await, "it has not what the pool asks for");
        assert!(takes(store, "b", GPU).await);
        assert!(matches!(start_on(store, "x", "b").await, Requested::Accepted { .. }));
        assert_eq!(runtime(store, "x").await.node.as_deref(), Some("b"), "not where most slots are free, but there");
        let Requested::Refused { code, message, .. } = start_on(store, "x", "a").await else { panic!("it is on b") };
        assert_eq!((code, message.as_str()), (OperationCode::Conflict, "it is on the node b and is wanted on a"));
        let Requested::Refused { code, message, .. } = start_on(store, "y", "full").await else { panic!("is full") };
        let told = "all slots are taken: 0 of 0 on full";
        assert_eq!((code, message.as_str()), (OperationCode::ServiceUnavailable, told), "at once: the pool backs off");
        // Declared without labels anybody may run it, but for what is on b already.
        pool(store, &["x", "y"], &[]).await;
        store.leave_pools("b").await.expect("leaves");
        assert!(!takes(store, "a", &[]).await);
        assert!(takes(store, "b", GPU).await);
        sound(store).await;
    })
    .await;
}

/// One of a newer program, say.
#[tokio::test]
async fn r7_a_pool_that_cannot_be_read_stops_no_other() {
    on_both(async |db| {
        let store = &db.store;
        beat(store, "a", &[], None).await;
        declare_as(store, "x", |_| {}).await;
        pool(store, &["x"], &[]).await;
        let newer = r#"insert into pools (tenant, name, spec, state, principal, created_at, updated_at)
                       select tenant, 'newer', '{"slots": "many"}', state, principal, created_at, updated_at from pools"#;
        run_sql(store, newer).await.expect("writes");
        assert!(takes(store, "a", &[]).await);
        let taken = number(store, "select count(*) from pools where node = 'a'").await;
        assert_eq!(taken, 1, "it is left to a node that can read it");
    })
    .await;
}

#[tokio::test]
async fn r7_the_members_of_a_pool_are_moved_together_or_not_at_all() {
    on_both(async |db| {
        let store = &db.store;
        beat(store, "a", &[], None).await;
        let a = Node::new(store, "a").await;
        declare_as(store, "x", |spec| spec.movable = true).await;
        declare_as(store, "y", |_| {}).await;
        pool(store, &["x", "y"], &[]).await;
        assert!(takes(store, "a", &[]).await);
        for of in ["x", "y"] {
            start_on(store, of, "a").await;
        }
        assert_eq!(a.work(store).await.len(), 2);
        db.pass_ms(BEATEN_AHEAD_MS + 61_000).await;
        beat(store, "b", &[], None).await;
        assert!(store.leave_lost_nodes(60).await.expect("looks").is_empty(), "y may not be moved, so x stays with it");
        assert!(!takes(store, "b", &[]).await, "and the pool with both");
        declare_as(store, "y", |spec| spec.movable = true).await;
        assert_eq!(store.leave_lost_nodes(60).await.expect("moves").len(), 2);
        for of in ["x", "y"] {
            let moved = runtime(store, of).await;
            assert_eq!((moved.node.as_deref(), moved.status), (Some("b"), RuntimeStatus::Removed));
            assert_eq!(moved.in_flight, None, "the pool starts it when somebody needs it");
        }
        assert!(takes(store, "b", &[]).await, "the pool goes where they are");
        sound(store).await;
    })
    .await;
}
