//! Those who wait on a node find what others brought about, also where no hint came (Q5, Q11).

use futures_util::FutureExt;
use store::hints::{Listener, Topic};
use store::jobs::settle::End;
use store::{DatabaseUrl, Store};
use testkit::{job, name, on_both, on_postgres};
use tokio::task::JoinSet;

use crate::support::*;

/// Whether somebody was woken since the last look.
fn is_woken(listener: &Listener) -> bool {
    listener.hint().now_or_never().is_some()
}

async fn look(store: &Store) -> usize {
    store.wake_waiting().await.expect("looks")
}

#[tokio::test]
async fn q5_who_waits_finds_what_another_node_brought_about_without_a_hint() {
    on_both(async |db| {
        let (here, there) = (&db.store, db.another_node().await);
        let worker = register(here, &["q"]).await;
        let listen = |topic: Topic| here.hints().listen([topic]);
        let (ready, called) = (listen(Topic::Ready(T, name("q"))), listen(Topic::Worker(worker)));
        assert_eq!(look(here).await, 0);

        let id = push(&there, job("q")).await;
        assert!(!is_woken(&ready), "nobody told this node");
        assert_eq!(look(here).await, 1);
        assert!(is_woken(&ready) && !is_woken(&called));

        let ended = listen(Topic::Ended(id));
        let claimed = claim_one(here, worker).await;
        assert_eq!(look(here).await, 0, "it is taken and goes on");
        there.cancel(T, id, "me".into()).await.expect("cancels");
        assert_eq!(look(here).await, 2);
        assert!(is_woken(&called) && is_woken(&ended) && !is_woken(&ready));
        settle(here, worker, id, claimed.epoch, End::Cancel).await;
        drop(ended);
        assert_eq!(look(here).await, 0, "the worker has answered");

        push(&there, job("q")).await;
        there.pause_queue(T, name("q"), "me".into(), None).await.expect("pauses");
        assert_eq!(look(here).await, 0, "nothing can be claimed");
        there.drain_worker(T, worker).await.expect("drains");
        assert_eq!(look(here).await, 1);
        assert!(is_woken(&called));
    })
    .await;
}

#[tokio::test]
async fn q4_who_waits_finds_what_somebodys_own_transaction_brought_in() {
    on_postgres(async |db| {
        let ready = db.store.hints().listen([Topic::Ready(T, name("q"))]);
        let enqueue = "select windlass.enqueue('q', 'k', '{}')";
        psql(&db.admin).await.client.batch_execute(enqueue).await.expect("enqueues");
        assert_eq!(look(&db.store).await, 1);
        assert!(is_woken(&ready));
    })
    .await;
}

#[tokio::test]
async fn q5_a_job_that_nobody_can_take_wakes_those_who_wait_once() {
    on_postgres(async |db| {
        let ready = db.store.hints().listen([Topic::Ready(T, name("q"))]);
        let psql = psql(&db.admin).await;
        let enqueue = async |kind: &str| {
            let enqueue = format!("select windlass.enqueue('q', '{kind}', '{{}}')");
            psql.client.batch_execute(&enqueue).await.expect("enqueues");
        };
        enqueue("unserved").await;
        for _ in 0..2 {
            assert_eq!(look(&db.store).await, 1, "another node may have made room, and is not heard");
            assert!(is_woken(&ready));
        }

        let DatabaseUrl::Postgres(url) = db.url.clone() else { panic!("PostgreSQL only") };
        let (mut relay, store) = (JoinSet::new(), db.store.clone());
        relay.spawn(async move { store.relay_hints(&url).await });
        ready.hint().await;
        assert!(db.store.hints().are_relayed());
        assert_eq!(look(&db.store).await, 0, "it is the same job");
        assert!(!is_woken(&ready));
        enqueue("served").await;
        assert_eq!(look(&db.store).await, 1, "what comes behind it is found");
        assert!(is_woken(&ready));
        assert_eq!(look(&db.store).await, 0);
    })
    .await;
}
