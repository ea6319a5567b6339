use domain::{Epoch, JobState, QueueSettings};
use store::queue::claim::ClaimedJob;
use store::queue::enqueue::{Extras, NewJob};
use store::queue::settle::{End, Outcome, SettleStatus, Settled};
use store::signals::refine::{SignalChange, Signaled};
use testkit::{job, name, on_both};

use crate::support::*;

#[tokio::test]
async fn a_finished_job_keeps_its_result_and_its_history() {
    on_both(async |db| {
        let id = push(&db.store, job("q")).await;
        let worker = register(&db.store, &["q"]).await;
        let claimed = claim_one(&db.store, worker).await;
        assert_eq!(state(&db.store, id).await, "working");
        assert_eq!(finish(&db.store, worker, &claimed).await, SettleStatus::Applied);
        let ended = get(&db.store, id).await;
        assert_eq!((ended.state.as_str(), ended.result.as_deref(), ended.attempt), ("succeeded", Some("42"), 1));
        assert!(ended.finished_at.is_some() && ended.started_at.is_some());
        assert_eq!(events(&db.store, id).await, ["enqueued", "started", "finished"]);
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement X3.
#[tokio::test]
async fn a_stale_epoch_changes_nothing() {
    on_both(async |db| {
        let id = push(&db.store, job("q")).await;
        let worker = register(&db.store, &["q"]).await;
        let claimed = claim_one(&db.store, worker).await;
        let stale = Epoch(claimed.epoch.0 - 1);
        for end in [End::Finish(None), End::Fail(boom()), End::Cancel, End::Snooze { delay_ms: 1 }, End::Release] {
            assert_eq!(settle(&db.store, worker, id, stale, end).await, SettleStatus::ClaimLost);
        }
        assert_eq!(state(&db.store, id).await, "working");
        assert_eq!(finish(&db.store, worker, &claimed).await, SettleStatus::Applied);
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement X3.
#[tokio::test]
async fn an_outcome_from_another_worker_changes_nothing() {
    on_both(async |db| {
        push(&db.store, job("q")).await;
        let worker = register(&db.store, &["q"]).await;
        let other = register(&db.store, &["q"]).await;
        let claimed = claim_one(&db.store, worker).await;
        assert_eq!(finish(&db.store, other, &claimed).await, SettleStatus::ClaimLost);
        assert_eq!(finish(&db.store, worker, &claimed).await, SettleStatus::Applied);
    })
    .await;
}

#[tokio::test]
async fn a_second_outcome_is_rejected() {
    on_both(async |db| {
        let id = push(&db.store, job("q")).await;
        let worker = register(&db.store, &["q"]).await;
        let claimed = claim_one(&db.store, worker).await;
        assert_eq!(finish(&db.store, worker, &claimed).await, SettleStatus::Applied);
        assert_eq!(finish(&db.store, worker, &claimed).await, SettleStatus::AlreadyEnded);
        assert_eq!(settle(&db.store, worker, id, claimed.epoch, End::Fail(boom())).await, SettleStatus::AlreadyEnded);
        assert_eq!(state(&db.store, id).await, "succeeded");
        assert_counters_match(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn one_batch_may_contain_every_outcome_and_an_unknown_job() {
    on_both(async |db| {
        push_all(&db.store, (0..5).map(|_| job("q")).collect()).await;
        let worker = register(&db.store, &["q"]).await;
        let jobs = claim(&db.store, worker, 5).await;
        let ends = [
            End::Finish(Some("1".into())),
            End::Fail(boom()),
            End::Cancel,
            End::Snooze { delay_ms: 60_000 },
            End::Release,
        ];
        let mut outcomes: Vec<Outcome> =
            jobs.iter().zip(ends).map(|(job, end)| Outcome { job: job.id, epoch: job.epoch, end }).collect();
        outcomes.push(outcomes[0].clone());
        outcomes.push(outcomes[1].clone());
        let unknown = domain::JobId::new(store::db::clock::new_uuid(db.clock.now()));
        outcomes.push(Outcome { job: unknown, epoch: Epoch(1), end: End::Finish(None) });
        let settled = db.store.settle(T, worker, outcomes).await.expect("settles");
        let mut expected = vec![SettleStatus::Applied; 5];
        expected.extend([SettleStatus::AlreadyEnded, SettleStatus::ClaimLost, SettleStatus::NotFound]);
        assert_eq!(settled, Settled::Results(expected));
        let mut states = Vec::new();
        for job in &jobs {
            states.push(state(&db.store, job.id).await);
        }
        assert_eq!(states, ["succeeded", "scheduled", "canceled", "scheduled", "queued"]);
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement Q8.
#[tokio::test]
async fn a_failure_waits_by_its_retry_policy_and_the_last_attempt_ends_the_job() {
    on_both(async |db| {
        let retry = domain::RetryPolicy::new(Some(60), Some(120), Some(1.1), None).expect("valid");
        let extras = Extras { retry: Some(retry), ..Extras::default() };
        let id = push(&db.store, NewJob { extras: Some(Box::new(extras)), max_attempts: 3, ..job("q") }).await;
        for (attempt, wait_s) in [(1, Some(60)), (2, Some(66)), (3, None)] {
            let worker = register(&db.store, &["q"]).await;
            let claimed = claim_one(&db.store, worker).await;
            assert_eq!(claimed.attempt, attempt);
            assert_eq!(settle(&db.store, worker, id, claimed.epoch, End::Fail(boom())).await, SettleStatus::Applied);
            let after = get(&db.store, id).await;
            match wait_s {
                Some(wait_s) => {
                    assert_eq!(after.state.as_str(), "scheduled");
                    assert_eq!(after.run_at.ms_since(after.updated_at), wait_s * 1_000);
                    db.pass_ms(wait_s * 1_000 + 100).await;
                    db.store.promote_due().await.expect("promotes");
                }
                None => assert_eq!(after.state.as_str(), "failed"),
            }
        }
        let error = get(&db.store, id).await.error.expect("it failed");
        assert_eq!(error, boom());
        let history = events(&db.store, id).await;
        assert_eq!(history, ["enqueued", "started", "failed", "started", "failed", "started", "failed"]);
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement Q8.
#[tokio::test]
async fn a_non_retryable_failure_ends_the_job_immediately() {
    on_both(async |db| {
        let id = push(&db.store, job("q")).await;
        let worker = register(&db.store, &["q"]).await;
        let claimed = claim_one(&db.store, worker).await;
        let error = domain::JobError { retryable: false, ..boom() };
        settle(&db.store, worker, id, claimed.epoch, End::Fail(error)).await;
        assert_eq!(state(&db.store, id).await, "failed");
    })
    .await;
}

/// Requirement Q7.
#[tokio::test]
async fn release_and_snooze_use_up_no_attempt() {
    on_both(async |db| {
        let id = push(&db.store, NewJob { max_attempts: 1, ..job("q") }).await;
        let worker = register(&db.store, &["q"]).await;
        for _ in 0..3 {
            let claimed = claim_one(&db.store, worker).await;
            assert_eq!(claimed.attempt, 1);
            assert_eq!(settle(&db.store, worker, id, claimed.epoch, End::Release).await, SettleStatus::Applied);
        }
        let claimed = claim_one(&db.store, worker).await;
        assert_eq!(claimed.epoch, Epoch(4), "the epoch only grows");
        settle(&db.store, worker, id, claimed.epoch, End::Snooze { delay_ms: 1_000 }).await;
        assert_eq!(get(&db.store, id).await.attempt, 0);
        db.pass_ms(1_100).await;
        db.store.promote_due().await.expect("promotes");
        let claimed = claim_one(&db.store, worker).await;
        assert_eq!(finish(&db.store, worker, &claimed).await, SettleStatus::Applied);
        assert_counters_match(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn many_workers_settle_in_one_commit() {
    on_both(async |db| {
        push_all(&db.store, (0..64).map(|_| job("q")).collect()).await;
        let mut calls = tokio::task::JoinSet::new();
        for _ in 0..16 {
            let store = db.store.clone();
            calls.spawn(async move {
                let worker = register(&store, &["q"]).await;
                for job in claim(&store, worker, 4).await {
                    assert_eq!(finish(&store, worker, &job).await, SettleStatus::Applied);
                }
            });
        }
        calls.join_all().await;
        let queue = db.store.queue(T, &testkit::name("q")).await.expect("reads").expect("exists");
        assert_eq!((queue.counts.succeeded, queue.counts.running), (64, 0));
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement W1.
#[tokio::test]
async fn facts_for_a_job_without_a_subject_reject_the_whole_batch() {
    on_both(async |db| {
        let on_subject = push(&db.store, crate::fleet::subjects::on("m", "scrub")).await;
        let without = push(&db.store, job("q")).await;
        let worker = register(&db.store, &["q"]).await;
        let claimed = claim(&db.store, worker, 2).await;
        let epoch = |id| claimed.iter().find(|job| job.id == id).expect("both are claimed").epoch;
        let facts = || crate::fleet::subjects::facts(&[("state", "1")]);
        let with_facts = |id, epoch| Outcome { job: id, epoch, end: End::FinishWith { result: None, facts: facts() } };
        let outcomes = || vec![with_facts(on_subject, epoch(on_subject)), with_facts(without, epoch(without))];
        let settled = db.store.settle(T, worker, outcomes()).await.expect("answers");
        assert_eq!(settled, Settled::FactsWithoutSubject(1));
        for id in [on_subject, without] {
            assert_eq!(state(&db.store, id).await, "working", "the claims remain");
        }
        let late = with_facts(without, Epoch(epoch(without).0 - 1));
        let settled = db.store.settle(T, worker, vec![late]).await.expect("answers");
        assert_eq!(settled, Settled::Results(vec![SettleStatus::ClaimLost]), "a lost claim is reported first");
        let none = Outcome { end: End::FinishWith { result: None, facts: Vec::new() }, ..outcomes().remove(1) };
        let settled = db.store.settle(T, worker, vec![outcomes().remove(0), none]).await.expect("answers");
        assert_eq!(settled, Settled::Results(vec![SettleStatus::Applied; 2]));
        let card = db.store.subject(T, testkit::label("m")).await.expect("reads").expect("facts create the subject");
        assert_eq!(card.subject.facts.len(), 1);
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Finishes jobs without results.
async fn finish_all(store: &store::Store, worker: domain::WorkerId, jobs: &[&ClaimedJob]) -> Vec<SettleStatus> {
    let outcome = |job: &&ClaimedJob| Outcome { job: job.id, epoch: job.epoch, end: End::Finish(None) };
    match store.settle(T, worker, jobs.iter().map(outcome).collect()).await.expect("settles") {
        Settled::Results(statuses) => statuses,
        other => panic!("{other:?}"),
    }
}

/// Requirement X3.
#[tokio::test]
async fn an_outcome_of_a_lost_claim_does_not_end_a_job_with_the_same_row_id() {
    on_both(async |db| {
        push_all(&db.store, (0..6).map(|_| job("q")).collect()).await;
        let worker = register(&db.store, &["q"]).await;
        let before = claim(&db.store, worker, 6).await;
        let lost = before.last().expect("six");
        db.store.cancel(T, lost.id, "me".into()).await.expect("cancels");
        assert_eq!(settle(&db.store, worker, lost.id, lost.epoch, End::Cancel).await, SettleStatus::Applied);
        let next = push(&db.store, job("q")).await;
        let later = claim_one(&db.store, worker).await;
        assert_eq!(
            (later.id, later.epoch),
            (next, lost.epoch),
            "on SQLite it reuses the rowid of the lost claim's job"
        );
        let statuses = finish_all(&db.store, worker, &before.iter().collect::<Vec<_>>()).await;
        assert_eq!(statuses[..5], [SettleStatus::Applied; 5]);
        assert_eq!(statuses[5], SettleStatus::AlreadyEnded);
        assert_eq!(
            (state(&db.store, lost.id).await, state(&db.store, next).await),
            ("canceled".into(), "working".into())
        );
        assert_eq!(finish_all(&db.store, worker, &[&later]).await, [SettleStatus::Applied]);
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement X3.
#[tokio::test]
async fn a_worker_that_lost_some_claims_settles_the_others() {
    on_both(async |db| {
        push_all(&db.store, (0..8).map(|_| job("q")).collect()).await;
        let (worker, other) = (register(&db.store, &["q"]).await, register(&db.store, &["q"]).await);
        let mine = claim(&db.store, worker, 8).await;
        for job in &mine[2..4] {
            assert_eq!(settle(&db.store, worker, job.id, job.epoch, End::Release).await, SettleStatus::Applied);
        }
        let theirs = claim(&db.store, other, 2).await;
        let statuses = finish_all(&db.store, worker, &mine.iter().collect::<Vec<_>>()).await;
        let expected = |at| if (2..4).contains(&at) { SettleStatus::ClaimLost } else { SettleStatus::Applied };
        assert_eq!(statuses, (0..8).map(expected).collect::<Vec<_>>());
        assert_eq!(finish_all(&db.store, other, &theirs.iter().collect::<Vec<_>>()).await, [SettleStatus::Applied; 2]);
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement Q12.
#[tokio::test]
async fn a_limit_set_after_the_claim_is_released_when_the_job_ends() {
    on_both(async |db| {
        push_all(&db.store, (0..8).map(|_| job("q")).collect()).await;
        let worker = register(&db.store, &["q"]).await;
        let running = claim(&db.store, worker, 4).await;
        let settings = QueueSettings { concurrency: Some(4), ..Default::default() };
        db.store.put_queue(T, name("q"), settings, "me".into()).await.expect("puts");
        assert!(claim(&db.store, worker, 4).await.is_empty());
        let statuses = finish_all(&db.store, worker, &running.iter().collect::<Vec<_>>()).await;
        assert_eq!(statuses, [SettleStatus::Applied; 4]);
        assert_eq!(claim(&db.store, worker, 8).await.len(), 4);
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement Q2.
#[tokio::test]
async fn a_loading_job_can_finish() {
    on_both(async |db| {
        push_all(&db.store, (0..4).map(|_| job("q")).collect()).await;
        let worker = register(&db.store, &["q"]).await;
        let running = claim(&db.store, worker, 4).await;
        let loading =
            SignalChange { epoch: running[1].epoch, state: Some(JobState::Loading), ..SignalChange::default() };
        assert_eq!(db.store.signal(T, running[1].id, loading).await.expect("signals"), Signaled::Applied);
        let statuses = finish_all(&db.store, worker, &running.iter().collect::<Vec<_>>()).await;
        assert_eq!(statuses, [SettleStatus::Applied; 4]);
        assert_counters_match(&db.store).await;
    })
    .await;
}
