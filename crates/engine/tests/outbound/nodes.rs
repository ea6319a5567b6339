//! Deliveries when nodes die, come late or share them.

use store::StoreError;
use store::deliveries::settle::{Attempted, SettledDelivery, Verdict};
use store::deliveries::{DeliveryState, NewDelivery, insert};
use store::tx::{Operation, Tx};
use testkit::on_both;
use testkit::receiver::{Manner, Receiver};

use crate::deliver::{LEASE_MS, engine, in_state, look, node, owe, to};

#[tokio::test]
async fn q10_what_a_node_took_and_never_told_of_comes_back() {
    on_both(async |db| {
        let receiver = Receiver::start(Manner::Answer(200)).await;
        let id = owe(&db.store, vec![to(&receiver.url())]).await[0];
        // A node that claims and dies.
        let taken = db.store.claim_deliveries(10, Default::default()).await.expect("claims");
        assert_eq!(taken.deliveries.len(), 1);
        assert_eq!(look(&db.store, id).await.delivery.state, DeliveryState::Delivering);
        let engine = engine(&db).await;
        db.pass_ms(LEASE_MS + 1_000).await;
        let done = in_state(&db.store, id, DeliveryState::Delivered).await;
        assert_eq!((done.attempts.len(), done.delivery.attempt), (2, 2));
        assert!(done.attempts[0].error.as_deref().is_some_and(|error| error.starts_with("interrupted")));
        engine.stop().await;
    })
    .await;
}

#[tokio::test]
async fn q10_a_node_that_tells_too_late_settles_nothing() {
    on_both(async |db| {
        // Nobody sends anything here: two nodes take the delivery, one after the other.
        let id = owe(&db.store, vec![to("http://127.0.0.1:9/")]).await[0];
        let attempt = async || -> Attempted {
            let taken = db.store.claim_deliveries(10, Default::default()).await.expect("claims").deliveries.remove(0);
            let (at, duration_ms) = (db.clock.now(), 1);
            let (status, response, verdict) = (Some(200), None, Verdict::Delivered);
            Attempted { delivery: taken.id, attempt: taken.attempt, at, duration_ms, status, response, verdict }
        };
        let late = attempt().await;
        db.pass_ms(LEASE_MS + 1_000).await;
        let next = attempt().await;
        assert_eq!((late.delivery, next.delivery, next.attempt), (id, id, 2));
        let settle = async |attempted: &Attempted| db.store.settle_delivery(attempted.clone()).await.expect("answers");
        assert_eq!(settle(&late).await, SettledDelivery::Lost);
        assert_eq!(look(&db.store, id).await.delivery.state, DeliveryState::Delivering);
        assert_eq!(settle(&next).await, SettledDelivery::Delivered);
        assert_eq!(settle(&next).await, SettledDelivery::Lost, "once");
    })
    .await;
}

#[tokio::test]
async fn q10_two_nodes_send_each_delivery_once() {
    on_both(async |db| {
        let second = if db.store.is_postgres() { db.another_node().await } else { db.store.clone() };
        let nodes = [engine(&db).await, node(second).await];
        let receiver = Receiver::start(Manner::Answer(200)).await;
        let ids = owe(&db.store, (0..200).map(|_| to(&receiver.url())).collect()).await;
        for id in ids {
            assert_eq!(in_state(&db.store, id, DeliveryState::Delivered).await.attempts.len(), 1);
        }
        assert_eq!(receiver.seen().len(), 200);
        for node in nodes {
            node.stop().await;
        }
    })
    .await;
}

#[tokio::test]
async fn q10_a_delivery_exists_exactly_when_its_transaction_committed() {
    struct OweAndFail(NewDelivery);
    impl Operation for OweAndFail {
        type Output = ();
        async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
            insert(tx, vec![self.0.clone()]).await?;
            Err(StoreError::unexpected("it did not happen"))
        }
    }
    on_both(async |db| {
        let engine = engine(&db).await;
        let receiver = Receiver::start(Manner::Answer(200)).await;
        assert!(db.store.write(OweAndFail(to(&receiver.url()))).await.is_err());
        let id = owe(&db.store, vec![to(&receiver.url())]).await[0];
        in_state(&db.store, id, DeliveryState::Delivered).await;
        assert_eq!(receiver.seen().len(), 1);
        engine.stop().await;
    })
    .await;
}
