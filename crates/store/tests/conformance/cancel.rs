use store::jobs::cancel::Canceled;
use store::jobs::enqueue::{Extras, NewJob, Unique};
use store::jobs::settle::{End, Status};
use store::workers::heartbeat::Heartbeat;
use testkit::{job, label, name, on_both};

use crate::support::*;

#[tokio::test]
async fn q11_a_waiting_job_is_canceled_at_once_and_saying_it_twice_is_once() {
    on_both(async |db| {
        let id = push(&db.store, job("q")).await;
        for _ in 0..2 {
            assert_eq!(db.store.cancel(T, id, "me".into()).await.expect("cancels"), Canceled::Canceled(id));
        }
        let worker = register(&db.store, &["q"]).await;
        assert!(claim(&db.store, worker, 1).await.is_empty());
        assert_eq!(events(&db.store, id).await, ["enqueued", "canceled"]);
        sound(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn q11_a_running_job_is_canceled_and_its_worker_hears_and_is_refused() {
    on_both(async |db| {
        let id = push(&db.store, job("q")).await;
        let worker = register(&db.store, &["q"]).await;
        let claimed = claim_one(&db.store, worker).await;
        db.store.cancel(T, id, "me".into()).await.expect("cancels");
        assert_eq!(state(&db.store, id).await, "canceled");
        let Heartbeat::Alive { cancel, .. } = db.store.heartbeat(T, worker, None).await.expect("answers") else {
            panic!("the worker lives")
        };
        assert_eq!(cancel, [id]);
        assert_eq!(settle(&db.store, worker, id, claimed.epoch, End::Cancel).await, Status::Applied);
        assert_eq!(settle(&db.store, worker, id, claimed.epoch, End::Cancel).await, Status::AlreadyEnded);
        assert_eq!(finish(&db.store, worker, &claimed).await, Status::AlreadyEnded);
        assert_eq!(state(&db.store, id).await, "canceled");
        sound(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn what_a_canceled_job_holds_is_held_until_its_worker_lets_go() {
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
        assert!(claim(&db.store, worker, 10).await.is_empty(), "the worker still has its hands on m1");
        settle(&db.store, worker, first, claimed[0].epoch, End::Cancel).await;
        assert_eq!(claim_one(&db.store, worker).await.id, second);
        sound(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn q3_a_job_is_canceled_by_its_key() {
    on_both(async |db| {
        let extras = Extras { unique: Some(Unique { key: "u".into(), for_s: None }), ..Extras::default() };
        let id = push(&db.store, NewJob { extras: Some(Box::new(extras)), ..job("q") }).await;
        let cancel = || db.store.cancel_by_key(T, name("q"), "u".into(), "me".into());
        assert_eq!(cancel().await.expect("cancels"), Canceled::Canceled(id));
        assert_eq!(cancel().await.expect("answers"), Canceled::NotFound, "the key is free");
    })
    .await;
}

#[tokio::test]
async fn q3_a_key_whose_time_has_passed_cancels_nothing() {
    on_both(async |db| {
        let extras = Extras { unique: Some(Unique { key: "u".into(), for_s: Some(60) }), ..Extras::default() };
        let id = push(&db.store, NewJob { extras: Some(Box::new(extras)), ..job("q") }).await;
        let cancel = async || db.store.cancel_by_key(T, name("q"), "u".into(), "me".into()).await.expect("answers");
        db.pass_ms(61_000).await;
        assert_eq!(cancel().await, Canceled::NotFound, "as it is once the key is pruned");
        assert_eq!(state(&db.store, id).await, "queued");
        let extras = Extras { unique: Some(Unique { key: "u".into(), for_s: Some(60) }), ..Extras::default() };
        let next = push(&db.store, NewJob { extras: Some(Box::new(extras)), ..job("q") }).await;
        assert_eq!(cancel().await, Canceled::Canceled(next), "who has the key now");
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
        let answer = db.store.cancel(T, id, "me".into()).await.expect("answers");
        assert_eq!(answer, Canceled::AlreadyEnded(domain::JobState::Succeeded));
        let stranger = domain::JobId::new(store::clock::new_uuid(db.clock.now()));
        assert_eq!(db.store.cancel(T, stranger, "me".into()).await.expect("answers"), Canceled::NotFound);
    })
    .await;
}

#[tokio::test]
async fn q5_what_is_canceled_only_while_it_waits_goes_on_once_a_worker_has_it() {
    on_both(async |db| {
        let (runs, waits) = (push(&db.store, job("q")).await, push(&db.store, job("other")).await);
        let worker = register(&db.store, &["q"]).await;
        let claimed = claim_one(&db.store, worker).await;
        let cancel = async |id| db.store.cancel_waiting(T, id, "me".into()).await.expect("answers");
        assert_eq!((cancel(runs).await, cancel(waits).await), (Canceled::AtWork, Canceled::Canceled(waits)));
        assert_eq!(finish(&db.store, worker, &claimed).await, Status::Applied);
        assert_eq!(cancel(runs).await, Canceled::AlreadyEnded(domain::JobState::Succeeded));
        sound(&db.store).await;
    })
    .await;
}
