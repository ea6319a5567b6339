//! Backoffs, lockouts and facts set by outcomes.

use domain::{JobError, JobId, RetryPolicy, WorkerId};
use store::Store;
use store::fleet::backoffs::lockout::Until;
use store::queue::enqueue::{Extras, NewJob};
use store::queue::settle::{ChosenBackoff, End, SettleStatus};
use testkit::{job, label, name, on_both};

use crate::fleet::subjects::{
    assert_consistent, card, counts, declare, finish_with, lock_out, on, process, scan, set, timeline,
};
use crate::support::*;

async fn fail(store: &Store, worker: WorkerId, error: JobError) -> JobId {
    let claimed = claim_one(store, worker).await;
    assert_eq!(settle(store, worker, claimed.id, claimed.epoch, End::Fail(error)).await, SettleStatus::Applied);
    claimed.id
}

async fn let_in(store: &Store, subject: &str, process: &str) -> bool {
    store.let_in(T, label(subject), process.into(), "eve".into()).await.expect("lets in")
}

/// Requirement W3.
#[tokio::test]
async fn a_finish_sets_facts_and_clears_the_backoff_in_one_commit() {
    on_both(async |db| {
        declare(&db.store, "install", process()).await;
        set(&db.store, "m-1", &[("state", "1")]).await;
        scan(&db.store).await;
        let worker = register(&db.store, &["q"]).await;
        fail(&db.store, worker, boom()).await;
        assert_eq!(card(&db.store, "m-1").await.subject.backoffs.len(), 1);
        assert_eq!((scan(&db.store).await, counts(&db.store, "install").await), (0, (0, 0, 1)));
        db.pass_ms(61_000).await;
        let worker = register(&db.store, &["q"]).await;
        assert_eq!(scan(&db.store).await, 1);
        let job = finish_with(&db.store, worker, &[("state", "2"), ("disk", "\"sda\"")]).await;
        let after = card(&db.store, "m-1").await;
        assert_eq!((after.subject.backoffs.len(), after.work.len(), after.eligibility.len()), (0, 0, 0));
        assert_eq!(
            number(&db.store, "select count(*) from backoffs").await,
            0,
            "the next backoff starts with the first wait"
        );
        assert_eq!((scan(&db.store).await, counts(&db.store, "install").await), (0, (0, 0, 0)));
        let again = settle(&db.store, worker, job, domain::Epoch(1), End::Fail(boom())).await;
        assert_eq!(again, SettleStatus::AlreadyEnded, "a second outcome is refused");
        let expected = [
            "created",
            "facts_changed",
            "started install",
            "failed install boom",
            "backed_off install boom: it broke",
            "started install",
            "finished install",
            "facts_changed install",
        ];
        assert_eq!(timeline(&db.store, "m-1").await, expected);
        assert_consistent(&db.store).await;
    })
    .await;
}

/// Requirement W5.
#[tokio::test]
async fn a_backoff_grows_and_a_non_retryable_failure_locks_out() {
    on_both(async |db| {
        declare(&db.store, "install", process()).await;
        set(&db.store, "m-1", &[("state", "1")]).await;
        for wait_s in [60, 120, 240] {
            assert_eq!(scan(&db.store).await, 1);
            let worker = register(&db.store, &["q"]).await;
            fail(&db.store, worker, boom()).await;
            let stored = card(&db.store, "m-1").await.subject.backoffs.remove(0);
            let wait_ms = stored.backoff.until.expect("the backoff ends").ms_since(stored.backoff.at);
            assert_eq!((wait_ms, stored.backoff.cause.as_str()), (wait_s * 1_000, "boom: it broke"));
            db.pass_ms((wait_s - 50) * 1_000).await;
            assert_eq!(scan(&db.store).await, 0, "never early");
            db.pass_ms(50_100).await;
            assert!(card(&db.store, "m-1").await.subject.backoffs.is_empty(), "an expired backoff is ignored");
        }
        assert_eq!(scan(&db.store).await, 1);
        let worker = register(&db.store, &["q"]).await;
        fail(&db.store, worker, JobError { retryable: false, ..boom() }).await;
        assert_eq!(card(&db.store, "m-1").await.subject.backoffs[0].backoff.until, None);
        db.pass_ms(100 * 86_400_000).await;
        assert_eq!((scan(&db.store).await, counts(&db.store, "install").await), (0, (0, 0, 1)));
        assert!(let_in(&db.store, "m-1", "install").await);
        assert_eq!(scan(&db.store).await, 1);
        assert_consistent(&db.store).await;
    })
    .await;
}

/// Requirement W5.
#[tokio::test]
async fn a_manual_lockout_covers_all_processes_until_it_is_released() {
    on_both(async |db| {
        declare(&db.store, "install", process()).await;
        declare(&db.store, "wipe", process()).await;
        set(&db.store, "m-1", &[("state", "1")]).await;
        set(&db.store, "m-2", &[("state", "1")]).await;
        lock_out(&db.store, "m-1", "*", Until::Forever).await;
        assert_eq!(scan(&db.store).await, 2, "m-2, twice");
        assert_eq!(counts(&db.store, "install").await, (0, 1, 1));
        let stored = card(&db.store, "m-1").await.subject.backoffs.remove(0);
        let backoff = (stored.process.as_str(), stored.backoff.until, stored.backoff.by.as_str());
        assert_eq!((backoff, stored.backoff.cause.as_str()), (("*", None, "eve"), "bad disk"));
        // A pushed job on the subject waits too and names the lockout as its reason.
        let pushed = push(&db.store, on("m-1", "other")).await;
        let worker = register(&db.store, &["q"]).await;
        assert_eq!(claim(&db.store, worker, 10).await.len(), 2);
        let why = db.store.why(T, pushed).await.expect("asks").expect("exists");
        assert_eq!(why.reason.as_str(), "backoff");
        assert!(why.detail.contains("bad disk") && why.detail.contains("eve"), "{}", why.detail);
        assert_consistent(&db.store).await;
        assert!(let_in(&db.store, "m-1", "*").await);
        assert!(!let_in(&db.store, "m-1", "*").await);
        assert_eq!(claim(&db.store, worker, 10).await.iter().map(|job| job.id).collect::<Vec<_>>(), [pushed]);
        assert_eq!(scan(&db.store).await, 2);
        let events = timeline(&db.store, "m-1").await;
        assert_eq!(events[2..4], ["locked_out * bad disk", "let_in * bad disk"]);
        assert_consistent(&db.store).await;
    })
    .await;
}

/// Requirement W5.
#[tokio::test]
async fn a_job_parked_for_a_backoff_is_claimable_after_its_end() {
    on_both(async |db| {
        lock_out(&db.store, "m-1", "scrub", Until::Seconds(600)).await;
        let pushed = push(&db.store, on("m-1", "scrub")).await;
        let other = push(&db.store, on("m-1", "other")).await;
        let worker = register_with_long_lease(&db.store).await;
        assert_eq!(claim(&db.store, worker, 10).await.iter().map(|job| job.id).collect::<Vec<_>>(), [other]);
        db.pass_ms(400_000).await;
        scan(&db.store).await;
        assert!(claim(&db.store, worker, 10).await.is_empty());
        assert_eq!(db.store.repair_parked_jobs().await.expect("repairs"), 0, "the backoff still blocks it");
        let next = db.store.scan().await.expect("scans").next_in_ms.expect("the next scan is scheduled");
        assert!(next <= 200_100, "{next}");
        db.pass_ms(200_100).await;
        let other_worker = register(&db.store, &["q"]).await;
        scan(&db.store).await;
        assert_eq!(claim(&db.store, other_worker, 10).await.iter().map(|job| job.id).collect::<Vec<_>>(), [pushed]);
        assert_consistent(&db.store).await;
    })
    .await;
}

/// Requirement W5.
#[tokio::test]
async fn a_failed_pushed_job_backs_off_its_subject_until_its_retry() {
    on_both(async |db| {
        let retry = RetryPolicy::new(Some(60), None, None, None).ok();
        let extras = Extras { subject: Some(label("m-1")), process: Some(name("scrub")), retry, ..Extras::default() };
        let pushed = push(&db.store, NewJob { extras: Some(Box::new(extras)), ..job("q") }).await;
        let worker = register(&db.store, &["q"]).await;
        fail(&db.store, worker, boom()).await;
        let job = get(&db.store, pushed).await;
        let backoff = card(&db.store, "m-1").await.subject.backoffs.remove(0).backoff;
        assert_eq!((job.state.to_string().as_str(), backoff.until), ("scheduled", Some(job.run_at)));
        assert!(let_in(&db.store, "m-1", "scrub").await);
        let waits = get(&db.store, pushed).await;
        assert_eq!((waits.state, waits.run_at), (job.state, job.run_at), "the job's own retry policy applies");
        db.pass_ms(61_000).await;
        db.store.promote_due().await.expect("promotes");
        let worker = register(&db.store, &["q"]).await;
        let again = claim_one(&db.store, worker).await;
        assert_eq!(finish(&db.store, worker, &again).await, SettleStatus::Applied);
        assert!(card(&db.store, "m-1").await.subject.backoffs.is_empty());
    })
    .await;
}

/// Requirement W5.
#[tokio::test]
async fn a_retryable_failure_does_not_lift_a_lockout() {
    on_both(async |db| {
        let retry = RetryPolicy::new(Some(60), None, None, None).ok();
        let extras = Extras { subject: Some(label("m-1")), process: Some(name("scrub")), retry, ..Extras::default() };
        let pushed = push(&db.store, NewJob { extras: Some(Box::new(extras)), ..job("q") }).await;
        let worker = register_with_long_lease(&db.store).await;
        let claimed = claim_one(&db.store, worker).await;
        lock_out(&db.store, "m-1", "scrub", Until::Forever).await;
        assert_eq!(
            settle(&db.store, worker, claimed.id, claimed.epoch, End::Fail(boom())).await,
            SettleStatus::Applied
        );
        assert_eq!(state(&db.store, pushed).await, "scheduled");
        let stored = card(&db.store, "m-1").await.subject.backoffs.remove(0).backoff;
        assert_eq!((stored.until, stored.cause.as_str(), stored.by.as_str()), (None, "bad disk", "eve"));
        db.pass_ms(61_000).await;
        db.store.promote_due().await.expect("promotes");
        assert!(claim(&db.store, worker, 10).await.is_empty(), "the lockout still applies");
        assert!(let_in(&db.store, "m-1", "scrub").await);
        assert_eq!(claim_one(&db.store, worker).await.id, pushed);
        assert_consistent(&db.store).await;
    })
    .await;
}

/// Requirement W4.
#[tokio::test]
async fn a_cancel_is_idempotent_and_does_not_change_the_backoff() {
    on_both(async |db| {
        declare(&db.store, "install", process()).await;
        set(&db.store, "m-1", &[("state", "1")]).await;
        scan(&db.store).await;
        let worker = register(&db.store, &["q"]).await;
        fail(&db.store, worker, boom()).await;
        db.pass_ms(61_000).await;
        let worker = register(&db.store, &["q"]).await;
        scan(&db.store).await;
        let claimed = claim_one(&db.store, worker).await;
        lock_out(&db.store, "m-1", "install", Until::Seconds(500)).await;
        let before = card(&db.store, "m-1").await.subject.backoffs;
        for expected in [SettleStatus::Applied, SettleStatus::AlreadyEnded] {
            assert_eq!(settle(&db.store, worker, claimed.id, claimed.epoch, End::Cancel).await, expected);
        }
        assert_eq!(card(&db.store, "m-1").await.subject.backoffs, before);
        assert_eq!(timeline(&db.store, "m-1").await.iter().filter(|line| line.starts_with("canceled")).count(), 1);
        assert_consistent(&db.store).await;
    })
    .await;
}

/// Requirement X4.
#[tokio::test]
async fn the_subject_of_a_dead_worker_is_released_with_a_backoff() {
    on_both(async |db| {
        declare(&db.store, "install", process()).await;
        set(&db.store, "m-1", &[("state", "1")]).await;
        scan(&db.store).await;
        let dead = register(&db.store, &["q"]).await;
        claim_one(&db.store, dead).await;
        db.pass_ms(31_000).await;
        db.store.sweep().await.expect("sweeps");
        assert_eq!(counts(&db.store, "install").await, (0, 0, 1));
        assert_eq!(number(&db.store, "select count(*) from holds").await, 0);
        db.pass_ms(61_000).await;
        assert_eq!(scan(&db.store).await, 1);
        let events = timeline(&db.store, "m-1").await;
        assert_eq!(
            events[2..],
            ["started install", "expired install expired", "backed_off install expired: the worker's lease expired"]
        );
        assert_consistent(&db.store).await;
    })
    .await;
}

/// Requirement W5.
#[tokio::test]
async fn a_failing_worker_chooses_its_backoff() {
    on_both(async |db| {
        declare(&db.store, "install", process()).await;
        set(&db.store, "m-1", &[("state", "1")]).await;
        let fail_for = async |error: JobError, backoff: ChosenBackoff| {
            assert_eq!(scan(&db.store).await, 1);
            let worker = register(&db.store, &["q"]).await;
            let claimed = claim_one(&db.store, worker).await;
            let end = End::FailUntil { error, backoff };
            assert_eq!(settle(&db.store, worker, claimed.id, claimed.epoch, end).await, SettleStatus::Applied);
            card(&db.store, "m-1").await.subject.backoffs.remove(0).backoff
        };
        let hour = fail_for(boom(), ChosenBackoff::ForMs(3_600_000)).await;
        assert_eq!(hour.until.expect("it ends").ms_since(hour.at), 3_600_000);
        assert_eq!((hour.cause.as_str(), hour.public_cause()), ("boom: it broke", "boom"));
        assert_eq!(scan(&db.store).await, 0, "the subject is left alone");
        db.pass_ms(3_600_100).await;
        let until = db.clock.now().plus_s(30);
        let permanent = JobError { retryable: false, ..boom() };
        let chosen = fail_for(permanent, ChosenBackoff::Until(until)).await;
        assert_eq!(chosen.until, Some(until), "also instead of a lockout without end");
        db.pass_ms(31_000).await;
        let next = fail_for(boom(), ChosenBackoff::ForMs(1_000)).await;
        assert_eq!(next.until.expect("it ends").ms_since(next.at), 1_000, "also a shorter one");
        assert_consistent(&db.store).await;
    })
    .await;
}

/// Requirement Q8.
#[tokio::test]
async fn a_chosen_backoff_is_the_time_of_the_next_attempt() {
    on_both(async |db| {
        let id = push(&db.store, job("q")).await;
        let worker = register(&db.store, &["q"]).await;
        let claimed = claim_one(&db.store, worker).await;
        let end = End::FailUntil { error: boom(), backoff: ChosenBackoff::ForMs(7_200_000) };
        settle(&db.store, worker, id, claimed.epoch, end).await;
        let waiting = get(&db.store, id).await;
        assert_eq!((waiting.state.as_str(), waiting.run_at.ms_since(waiting.updated_at)), ("scheduled", 7_200_000));
        let why = db.store.why(T, id).await.expect("reads").expect("the job exists");
        assert_eq!(why.detail, "waiting for a retry after `boom: it broke`");
        let items = db.store.history(T, id).await.expect("reads").expect("the job has a history");
        let failed = items.iter().find(|item| item.event == "failed").expect("it failed");
        assert_eq!((failed.cause.as_deref(), failed.message.as_deref()), (Some("boom"), Some("it broke")));
    })
    .await;
}
