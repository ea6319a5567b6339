//! Deadlines: a job fails at its deadline in any live state, and a job that ended in time is unchanged.

use domain::{JobState, OnFailure, TenantId};
use store::Store;
use store::queue::deadlines::OverdueJobs;
use store::queue::enqueue::{Extras, NewJob};
use store::queue::settle::SettleStatus;
use testkit::{Database, job, label, on_both};

use crate::support::*;
use crate::triggers::declarations::assert_verified;
use crate::workflows::runs::{node, start, states};

fn with_deadline(deadline_s: i64) -> NewJob {
    NewJob { extras: Some(Box::new(Extras { deadline_s: Some(deadline_s), ..Extras::default() })), ..job("q") }
}

async fn fail_overdue(store: &Store) -> OverdueJobs {
    store.fail_overdue_jobs().await.expect("fails")
}

/// Lets time pass while the service is alive: downtime is no reason to fail.
async fn pass_s(db: &Database, seconds: i64) {
    db.pass_ms(seconds * 1_000).await;
}

#[tokio::test]
async fn a_job_fails_at_its_deadline_in_any_live_state() {
    on_both(async |db| {
        let worker = register_with_long_lease(&db.store).await;
        let working = push(&db.store, with_deadline(100)).await;
        let claimed = claim_one(&db.store, worker).await;
        let queued = push(&db.store, with_deadline(100)).await;
        let run_at = Some(db.clock.now().plus_s(1_000));
        let scheduled = push(&db.store, NewJob { run_at, ..with_deadline(100) }).await;
        let later = push(&db.store, with_deadline(10_000)).await;
        assert_eq!(get(&db.store, queued).await.deadline_s, Some(100));
        pass_s(&db, 99).await;
        assert_eq!(fail_overdue(&db.store).await, OverdueJobs::default());
        pass_s(&db, 2).await;
        let failed = OverdueJobs { deadlines: 3, failed: 3, unreadable: 0 };
        assert_eq!(fail_overdue(&db.store).await, failed);
        assert_eq!(fail_overdue(&db.store).await, OverdueJobs::default(), "once");
        for id in [working, queued, scheduled] {
            let ended = get(&db.store, id).await;
            let error = ended.error.expect("failed");
            assert_eq!((ended.state, error.code.as_str()), (JobState::Failed, "deadline"));
            assert_eq!(error.message, "the job did not end within its deadline of 100 s");
        }
        assert_eq!(state(&db.store, later).await, "queued");
        assert_eq!(finish(&db.store, worker, &claimed).await, SettleStatus::AlreadyEnded);
        assert_eq!(claim_one(&db.store, worker).await.id, later);
        assert_counters_match(&db.store).await;
        assert_verified(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn a_deadline_of_a_job_that_ended_in_time_changes_nothing() {
    on_both(async |db| {
        let id = push(&db.store, with_deadline(100)).await;
        let worker = register_with_long_lease(&db.store).await;
        let claimed = claim_one(&db.store, worker).await;
        finish(&db.store, worker, &claimed).await;
        pass_s(&db, 101).await;
        assert_eq!(fail_overdue(&db.store).await, OverdueJobs { deadlines: 1, failed: 0, unreadable: 0 });
        assert_eq!(fail_overdue(&db.store).await, OverdueJobs::default());
        assert_eq!(state(&db.store, id).await, "succeeded");
        let retried = db.store.retry_job(T, id, None, "me").await.expect("retries");
        let store::queue::retry::Retried::Created(again) = retried else { panic!("{retried:?}") };
        assert_eq!(get(&db.store, again.id).await.deadline_s, Some(100), "a retry has a deadline of its own");
        db.store.cancel(T, again.id, "me".into()).await.expect("cancels");
        db.pass_ms(30 * 86_400_000).await;
        db.store.prune(i64::MAX / 2_000_000).await.expect("prunes");
        assert_eq!(number(&db.store, "select count(*) from job_options").await, 0);
    })
    .await;
}

#[tokio::test]
async fn the_deadline_of_a_waiting_node_ends_it_and_the_nodes_that_need_it() {
    on_both(async |db| {
        let mut slow = node("b", &["a"]);
        slow.job.extras.get_or_insert_default().deadline_s = Some(100);
        let nodes = vec![node("a", &[]), slow, node("c", &["b"])];
        let jobs = start(&db.store, "r", OnFailure::Continue, nodes).await;
        pass_s(&db, 101).await;
        assert_eq!(fail_overdue(&db.store).await.failed, 1);
        assert_eq!(states(&db.store, &jobs).await, "a queued, b failed, c canceled");
        let worker = register_with_long_lease(&db.store).await;
        let a = claim_one(&db.store, worker).await;
        finish(&db.store, worker, &a).await;
        let (run, _) = db.store.run(TenantId::DEFAULT, label("r")).await.expect("reads").expect("exists");
        assert_eq!(run.state, domain::RunState::Failed);
        assert_counters_match(&db.store).await;
        assert_verified(&db.store).await;
    })
    .await;
}
