use store::fleet::timeline::list::TimelineOf;
use store::queue::cancel::Canceled;
use store::queue::enqueue::{Extras, NewJob, Unique};
use store::queue::settle::{End, SettleStatus};
use store::queue::workers::heartbeat::Heartbeat;
use testkit::{job, label, name, on_both};

use crate::support::*;

/// Requirement Q11.
#[tokio::test]
async fn a_waiting_job_is_canceled_immediately_and_cancel_is_idempotent() {
    on_both(async |db| {
        let id = push(&db.store, job("q")).await;
        for _ in 0..2 {
            assert_eq!(db.store.cancel(T, id, "me".into()).await.expect("cancels"), Canceled::Canceled(id));
        }
        let worker = register(&db.store, &["q"]).await;
        assert!(claim(&db.store, worker, 1).await.is_empty());
        assert_eq!(events(&db.store, id).await, ["enqueued", "canceled"]);
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement Q11.
#[tokio::test]
async fn a_canceled_running_job_notifies_its_worker_and_rejects_its_outcome() {
    on_both(async |db| {
        let id = push(&db.store, job("q")).await;
        let worker = register(&db.store, &["q"]).await;
        let claimed = claim_one(&db.store, worker).await;
        db.store.cancel(T, id, "me".into()).await.expect("cancels");
        assert_eq!(state(&db.store, id).await, "canceled");
        let Heartbeat::Alive { cancel, .. } = db.store.heartbeat(T, worker, None).await.expect("answers") else {
            panic!("the worker is alive")
        };
        assert_eq!(cancel, [id]);
        assert_eq!(settle(&db.store, worker, id, claimed.epoch, End::Cancel).await, SettleStatus::Applied);
        assert_eq!(settle(&db.store, worker, id, claimed.epoch, End::Cancel).await, SettleStatus::AlreadyEnded);
        assert_eq!(finish(&db.store, worker, &claimed).await, SettleStatus::AlreadyEnded);
        assert_eq!(state(&db.store, id).await, "canceled");
        assert_counters_match(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn a_canceled_running_job_keeps_its_holds_until_its_worker_settles() {
    on_both(async |db| {
        let on_subject = || {
            let extras = Extras { subject: Some(label("m1")), ..Extras::default() };
            NewJob { extras: Some(Box::new(extras)), ..job("q") }
        };
        let first = push(&db.store, on_subject()).await;
        let second = push(&db.store, on_subject()).await;
        let worker = register(&db.store, &["q"]).await;
        let claimed = claim(&db.store, worker, 10).await;
        assert_eq!(claimed.iter().map(|job| job.id).collect::<Vec<_>>(), [first]);
        db.store.cancel(T, first, "me".into()).await.expect("cancels");
        assert!(claim(&db.store, worker, 10).await.is_empty(), "the worker still holds m1");
        settle(&db.store, worker, first, claimed[0].epoch, End::Cancel).await;
        assert_eq!(claim_one(&db.store, worker).await.id, second);
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement Q3.
#[tokio::test]
async fn a_job_is_canceled_by_its_unique_key() {
    on_both(async |db| {
        let extras = Extras { unique: Some(Unique { key: "u".into(), for_s: None }), ..Extras::default() };
        let id = push(&db.store, NewJob { extras: Some(Box::new(extras)), ..job("q") }).await;
        let cancel = || db.store.cancel_by_key(T, name("q"), "u".into(), "me".into());
        assert_eq!(cancel().await.expect("cancels"), Canceled::Canceled(id));
        assert_eq!(cancel().await.expect("answers"), Canceled::NotFound, "the key is free");
    })
    .await;
}

/// Requirement Q3.
#[tokio::test]
async fn an_expired_unique_key_cancels_nothing() {
    on_both(async |db| {
        let extras = Extras { unique: Some(Unique { key: "u".into(), for_s: Some(60) }), ..Extras::default() };
        let id = push(&db.store, NewJob { extras: Some(Box::new(extras)), ..job("q") }).await;
        let cancel = async || db.store.cancel_by_key(T, name("q"), "u".into(), "me".into()).await.expect("answers");
        db.pass_ms(61_000).await;
        assert_eq!(cancel().await, Canceled::NotFound, "same as after the key is pruned");
        assert_eq!(state(&db.store, id).await, "queued");
        let extras = Extras { unique: Some(Unique { key: "u".into(), for_s: Some(60) }), ..Extras::default() };
        let next = push(&db.store, NewJob { extras: Some(Box::new(extras)), ..job("q") }).await;
        assert_eq!(cancel().await, Canceled::Canceled(next), "the job that has the key now");
    })
    .await;
}

#[tokio::test]
async fn an_ended_job_is_not_canceled() {
    on_both(async |db| {
        let id = push(&db.store, job("q")).await;
        let worker = register(&db.store, &["q"]).await;
        let claimed = claim_one(&db.store, worker).await;
        finish(&db.store, worker, &claimed).await;
        let canceled = db.store.cancel(T, id, "me".into()).await.expect("answers");
        assert_eq!(canceled, Canceled::AlreadyEnded(domain::JobState::Succeeded));
        let unknown = domain::JobId::new(store::db::clock::new_uuid(db.clock.now()));
        assert_eq!(db.store.cancel(T, unknown, "me".into()).await.expect("answers"), Canceled::NotFound);
    })
    .await;
}

/// Requirement Q5.
#[tokio::test]
async fn cancel_waiting_does_not_affect_a_claimed_job() {
    on_both(async |db| {
        let (runs, waits) = (push(&db.store, job("q")).await, push(&db.store, job("other")).await);
        let worker = register(&db.store, &["q"]).await;
        let claimed = claim_one(&db.store, worker).await;
        let cancel = async |id| db.store.cancel_waiting(T, id, "me".into()).await.expect("answers");
        assert_eq!((cancel(runs).await, cancel(waits).await), (Canceled::Claimed, Canceled::Canceled(waits)));
        assert_eq!(finish(&db.store, worker, &claimed).await, SettleStatus::Applied);
        assert_eq!(cancel(runs).await, Canceled::AlreadyEnded(domain::JobState::Succeeded));
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement X6.
#[tokio::test]
async fn the_history_records_who_canceled_retried_and_resolved() {
    on_both(async |db| {
        let id = push(&db.store, job("q")).await;
        db.store.cancel(T, id, "ann".into()).await.expect("cancels");
        db.store.cancel(T, id, "bob".into()).await.expect("is idempotent");
        db.store.retry_job(T, id, None, "ann").await.expect("retries");
        let items = db.store.timeline(T, TimelineOf::Everything, None, 10).await.expect("reads");
        let recorded: Vec<_> =
            items.iter().rev().map(|item| (item.event.as_str(), item.actor.as_deref(), item.job)).collect();
        assert_eq!(recorded, [("job_canceled", Some("ann"), Some(id)), ("job_retried", Some("ann"), Some(id))]);
    })
    .await;
}
