//! The poller finds changes of other nodes and transactions that no notification announced.

use futures_util::FutureExt;
use store::db::notifier::{Subscription, Topic};
use store::queue::settle::End;
use store::{DatabaseUrl, Store};
use testkit::{job, name, on_both, on_postgres};
use tokio::task::JoinSet;

use crate::support::*;

/// Returns true if a notification arrived since the last call.
fn is_woken(listener: &Subscription) -> bool {
    listener.notified().now_or_never().is_some()
}

async fn poll(store: &Store) -> usize {
    store.poll_ready_queues().await.expect("polls")
}

/// Requirement Q5.
#[tokio::test]
async fn the_poller_finds_changes_of_another_node_without_a_notification() {
    on_both(async |db| {
        let (here, there) = (&db.store, db.another_node().await);
        let worker = register(here, &["q"]).await;
        let listen = |topic: Topic| here.notifier().subscribe([topic]);
        let (ready, to_worker) = (listen(Topic::Ready(T, name("q"))), listen(Topic::Worker(worker)));
        assert_eq!(poll(here).await, 0);

        let id = push(&there, job("q")).await;
        assert!(!is_woken(&ready), "this node got no notification");
        assert_eq!(poll(here).await, 1);
        assert!(is_woken(&ready) && !is_woken(&to_worker));

        let ended = listen(Topic::Ended(id));
        let claimed = claim_one(here, worker).await;
        assert_eq!(poll(here).await, 0, "the job is claimed and still runs");
        there.cancel(T, id, "me".into()).await.expect("cancels");
        assert_eq!(poll(here).await, 2);
        assert!(is_woken(&to_worker) && is_woken(&ended) && !is_woken(&ready));
        settle(here, worker, id, claimed.epoch, End::Cancel).await;
        drop(ended);
        assert_eq!(poll(here).await, 0, "the worker has settled the job");

        push(&there, job("q")).await;
        there.pause_queue(T, name("q"), "me".into(), None).await.expect("pauses");
        assert_eq!(poll(here).await, 0, "nothing can be claimed");
        there.drain_worker(T, worker).await.expect("drains");
        assert_eq!(poll(here).await, 1);
        assert!(is_woken(&to_worker));
    })
    .await;
}

/// Requirement Q4.
#[tokio::test]
async fn the_poller_finds_jobs_enqueued_in_a_callers_transaction() {
    on_postgres(async |db| {
        let ready = db.store.notifier().subscribe([Topic::Ready(T, name("q"))]);
        let enqueue = "select windlass.enqueue('q', 'k', '{}')";
        psql(&db.admin).await.client.batch_execute(enqueue).await.expect("enqueues");
        assert_eq!(poll(&db.store).await, 1);
        assert!(is_woken(&ready));
    })
    .await;
}

/// Requirement Q5.
#[tokio::test]
async fn with_listen_an_unserved_job_wakes_waiters_once() {
    on_postgres(async |db| {
        let ready = db.store.notifier().subscribe([Topic::Ready(T, name("q"))]);
        let psql = psql(&db.admin).await;
        let enqueue = async |kind: &str| {
            let enqueue = format!("select windlass.enqueue('q', '{kind}', '{{}}')");
            psql.client.batch_execute(&enqueue).await.expect("enqueues");
        };
        enqueue("unserved").await;
        for _ in 0..2 {
            assert_eq!(poll(&db.store).await, 1, "without LISTEN another node may have freed capacity unnoticed");
            assert!(is_woken(&ready));
        }

        let DatabaseUrl::Postgres(url) = db.url.clone() else { panic!("PostgreSQL only") };
        let (mut relay, store) = (JoinSet::new(), db.store.clone());
        relay.spawn(async move { store.relay_hints(&url).await });
        ready.notified().await;
        assert!(db.store.notifier().is_listening());
        assert_eq!(poll(&db.store).await, 0, "it is the same job");
        assert!(!is_woken(&ready));
        enqueue("served").await;
        assert_eq!(poll(&db.store).await, 1, "a new job behind it is announced");
        assert!(is_woken(&ready));
        assert_eq!(poll(&db.store).await, 0);
    })
    .await;
}
