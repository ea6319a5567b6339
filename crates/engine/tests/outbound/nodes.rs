//! Deliveries when nodes are killed, settle late, or share the work.

use store::StoreError;
use store::db::tx::{Operation, Tx};
use store::triggers::deliveries::settle::{CompletedAttempt, DeliveryOutcome, SettledDelivery};
use store::triggers::deliveries::{DeliveryState, NewDelivery, insert};
use testkit::on_both;
use testkit::receiver::{Behavior, Receiver};

use crate::deliver::{LEASE_MS, delivery_to, engine, get, in_state, insert_deliveries, node};

/// Requirement Q10.
#[tokio::test]
async fn a_delivery_claimed_by_a_dead_node_is_retried() {
    on_both(async |db| {
        let receiver = Receiver::start(Behavior::Respond(200)).await;
        let id = insert_deliveries(&db.store, vec![delivery_to(&receiver.url())]).await[0];
        // A node claims the delivery and is killed.
        let claimed = db.store.claim_deliveries(10, Default::default()).await.expect("claims");
        assert_eq!(claimed.deliveries.len(), 1);
        assert_eq!(get(&db.store, id).await.delivery.state, DeliveryState::Delivering);
        let engine = engine(&db).await;
        db.pass_ms(LEASE_MS + 1_000).await;
        let done = in_state(&db.store, id, DeliveryState::Delivered).await;
        assert_eq!((done.attempts.len(), done.delivery.attempt), (2, 2));
        assert!(done.attempts[0].error.as_deref().is_some_and(|error| error.starts_with("interrupted")));
        engine.stop().await;
    })
    .await;
}

/// Requirement Q10.
#[tokio::test]
async fn a_settle_after_the_delivery_lease_expired_is_rejected() {
    on_both(async |db| {
        // Without an engine: the test claims the delivery twice.
        let id = insert_deliveries(&db.store, vec![delivery_to("http://127.0.0.1:9/")]).await[0];
        let attempt = async || -> CompletedAttempt {
            let claimed = db.store.claim_deliveries(10, Default::default()).await.expect("claims").deliveries.remove(0);
            let (at, duration_ms) = (db.clock.now(), 1);
            let (status, response, outcome) = (Some(200), None, DeliveryOutcome::Delivered);
            CompletedAttempt {
                delivery: claimed.id,
                attempt: claimed.attempt,
                at,
                duration_ms,
                status,
                response,
                outcome,
            }
        };
        let late = attempt().await;
        db.pass_ms(LEASE_MS + 1_000).await;
        let next = attempt().await;
        assert_eq!((late.delivery, next.delivery, next.attempt), (id, id, 2));
        let settle =
            async |attempted: &CompletedAttempt| db.store.settle_delivery(attempted.clone()).await.expect("settles");
        assert_eq!(settle(&late).await, SettledDelivery::Lost);
        assert_eq!(get(&db.store, id).await.delivery.state, DeliveryState::Delivering);
        assert_eq!(settle(&next).await, SettledDelivery::Delivered);
        assert_eq!(settle(&next).await, SettledDelivery::Lost, "an attempt settles once");
    })
    .await;
}

/// Requirement Q10.
#[tokio::test]
async fn two_nodes_send_each_delivery_once() {
    on_both(async |db| {
        let second = if db.store.is_postgres() { db.another_node().await } else { db.store.clone() };
        let nodes = [engine(&db).await, node(second).await];
        let receiver = Receiver::start(Behavior::Respond(200)).await;
        let ids = insert_deliveries(&db.store, (0..200).map(|_| delivery_to(&receiver.url())).collect()).await;
        for id in ids {
            assert_eq!(in_state(&db.store, id, DeliveryState::Delivered).await.attempts.len(), 1);
        }
        assert_eq!(receiver.requests().len(), 200);
        for node in nodes {
            node.stop().await;
        }
    })
    .await;
}

/// Requirement Q10.
#[tokio::test]
async fn a_delivery_exists_exactly_when_its_transaction_committed() {
    struct InsertAndFail(NewDelivery);
    impl Operation for InsertAndFail {
        type Output = ();
        async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
            insert(tx, vec![self.0.clone()]).await?;
            Err(StoreError::unexpected("the transaction fails"))
        }
    }
    on_both(async |db| {
        let engine = engine(&db).await;
        let receiver = Receiver::start(Behavior::Respond(200)).await;
        assert!(db.store.write(InsertAndFail(delivery_to(&receiver.url()))).await.is_err());
        let id = insert_deliveries(&db.store, vec![delivery_to(&receiver.url())]).await[0];
        in_state(&db.store, id, DeliveryState::Delivered).await;
        assert_eq!(receiver.requests().len(), 1);
        engine.stop().await;
    })
    .await;
}
