//! Set-based SQL against the domain rules: `domain::Job::apply` on the rows before must give the rows after.

use std::collections::BTreeMap;

use domain::queue::job::{Claim, ClaimRef, Event};
use domain::{Epoch, Job, JobId, JobState, Outcome, RetryPolicy, State, Time};
use store::Store;
use store::queue::enqueue::{Extras, NewJob, Unique};
use store::queue::get::StoredJob;
use store::queue::settle::{End, SettleStatus, Settled};
use testkit::{Database, job, label, name, on_both};
use uuid::Uuid;

use crate::support::*;

/// Converts a row to the domain type. `wait_s` and `began` are in no view; claim and finish do not change them.
fn to_domain(row: &StoredJob) -> Job {
    let claim = || Claim {
        worker: row.worker.expect("claimed"),
        epoch: row.epoch,
        at: row.started_at.expect("claimed"),
        waiting_since: row.run_at,
        begun: false,
    };
    let ended = |outcome| State::Ended { at: row.finished_at.expect("ended"), outcome };
    let state = match row.state {
        JobState::Waiting => State::Waiting { run_at: row.run_at },
        JobState::Scheduled => State::Scheduled { run_at: row.run_at },
        JobState::Queued => State::Queued { since: row.run_at },
        JobState::Loading => State::Loading(claim()),
        JobState::Working => State::Working(claim()),
        JobState::Succeeded => ended(Outcome::Succeeded),
        JobState::Failed => ended(Outcome::Failed(row.error.clone().expect("failed"))),
        JobState::Canceled => ended(Outcome::Canceled),
    };
    Job {
        state,
        epoch: row.epoch,
        attempt: row.attempt,
        max_attempts: row.max_attempts,
        retry: row.retry.unwrap_or(RetryPolicy::QUEUE_DEFAULT),
        wait_s: None,
    }
}

/// The fields that a transition must not change.
fn unchanged_fields(row: &StoredJob) -> impl PartialEq + std::fmt::Debug {
    let texts = [&row.subject, &row.process, &row.run, &row.unique_key, &row.concurrency_key, &row.webhook];
    let texts: Vec<Option<String>> = texts.into_iter().cloned().collect();
    let of = (row.lane.clone(), row.payload.clone(), row.created_at, row.run_at, row.timeout_s);
    (texts, of, row.tags.clone(), row.parent, row.principal.clone(), row.depth, row.triggered_by.clone())
}

type Rows = BTreeMap<JobId, StoredJob>;

async fn rows(store: &Store, ids: &[JobId]) -> Rows {
    let mut rows = Rows::new();
    for id in ids {
        rows.insert(*id, get(store, *id).await);
    }
    rows
}

/// Extras with only the n-th field set: a fast path for plain jobs must not drop it.
fn only(n: usize) -> Extras {
    match n {
        1 => Extras { run: Some(label("r")), depth: 3, ..Extras::default() },
        3 => Extras { process: Some(name("p")), ..Extras::default() },
        5 => Extras { unique: Some(Unique { key: "u".into(), for_s: None }), ..Extras::default() },
        7 => Extras { parent: Some(JobId::new(Uuid::from_u128(7))), tags: vec![label("y")], ..Extras::default() },
        _ => Extras { timeout_s: Some(700), retry: Some(RetryPolicy::NONE), ..Extras::default() },
    }
}

/// Creates jobs in various states: fresh, released, expired, failed, scheduled, of another kind, canceled.
async fn jobs_in_various_states(db: &Database) -> Vec<JobId> {
    let full = || Extras {
        run: Some(label("r")),
        tags: vec![label("x")],
        timeout_s: Some(600),
        retry: Some(RetryPolicy::NONE),
        webhook: Some(r#"{"url":"https://example.org/"}"#.into()),
        ..Extras::default()
    };
    let jobs = (0..12).map(|n| NewJob {
        payload: format!("{n}").into(),
        extras: (n != 11).then(|| Box::new(if n % 2 == 0 { full() } else { only(n) })),
        ..job("q")
    });
    let mut ids: Vec<JobId> = push_all(&db.store, jobs.collect()).await.iter().map(|job| job.id).collect();
    let worker = register(&db.store, &["q"]).await;
    let ends = [End::Release, End::Fail(boom()), End::Snooze { delay_ms: 1_000 }, End::Release];
    for (claimed, end) in claim(&db.store, worker, 6).await.into_iter().zip(ends) {
        settle(&db.store, worker, claimed.id, claimed.epoch, end).await;
    }
    db.pass_ms(31_000).await;
    db.store.sweep().await.expect("sweeps");
    db.store.promote_due().await.expect("promotes");
    db.store.cancel(T, ids[11], "me".into()).await.expect("cancels");
    let later = NewJob { run_at: Some(db.clock.now().plus_s(900)), ..job("q") };
    ids.push(push(&db.store, later).await);
    ids.push(push(&db.store, NewJob { kind: name("l"), ..job("q") }).await);
    ids
}

fn check(before: &Rows, after: &Rows, expected: impl Fn(&StoredJob, Job, Time) -> Option<Job>) {
    for (id, was) in before {
        let is = &after[id];
        let rules = to_domain(was);
        let at = is.finished_at.or(is.started_at).unwrap_or(is.updated_at);
        match expected(was, rules.clone(), at) {
            Some(next) => {
                assert_eq!(to_domain(is), next, "{id}");
                assert_eq!(is.version, was.version + 1, "every transition increments the version");
            }
            None => {
                assert_eq!(to_domain(is), rules, "{id} should not have changed");
                assert_eq!((is.version, is.updated_at), (was.version, was.updated_at));
            }
        }
        assert_eq!(unchanged_fields(is), unchanged_fields(was), "{id}");
    }
}

/// Requirement X1.
#[tokio::test]
async fn the_claim_statement_matches_the_domain_rules() {
    on_both(async |db| {
        let ids = jobs_in_various_states(&db).await;
        for max in [1, 3, 100] {
            let kinds = Some(vec![name("k")]);
            let new = store::queue::workers::register::NewWorker { kinds, ..new_worker(&["q"]) };
            let worker = db.store.register_worker(T, new).await.expect("registers");
            let before = rows(&db.store, &ids).await;
            let claimed = claim(&db.store, worker, max).await;
            assert!(!claimed.is_empty() && claimed.len() <= max);
            let taken: Vec<JobId> = claimed.iter().map(|job| job.id).collect();
            let after = rows(&db.store, &ids).await;
            check(&before, &after, |was, job, at| {
                taken
                    .contains(&was.id)
                    .then(|| job.apply(Event::Claim { worker, loads: false }, at).expect("the job was claimable"))
            });
            for job in &claimed {
                assert_eq!((job.epoch, job.attempt), (after[&job.id].epoch, after[&job.id].attempt));
            }
        }
    })
    .await;
}

/// Requirement X3.
#[tokio::test]
async fn the_finish_statement_matches_the_domain_rules() {
    on_both(async |db| {
        let ids = jobs_in_various_states(&db).await;
        let (worker, other) = (register(&db.store, &["q"]).await, register(&db.store, &["q"]).await);
        claim(&db.store, worker, 6).await;
        claim(&db.store, other, 2).await;
        // Each of two workers finishes every job with the previous epoch, the current epoch and the next one.
        for (by, shift) in [(other, -1), (other, 0), (worker, -1), (worker, 0), (worker, 1)] {
            let before = rows(&db.store, &ids).await;
            let held = |row: &StoredJob| ClaimRef { worker: by, epoch: Epoch((row.epoch.0 + shift).max(0)) };
            let outcomes: Vec<_> = before
                .values()
                .map(|row| store::queue::settle::Outcome {
                    job: row.id,
                    epoch: held(row).epoch,
                    end: End::Finish(Some("[1]".into())),
                })
                .collect();
            let Settled::Results(statuses) = db.store.settle(T, by, outcomes).await.expect("settles") else {
                panic!("the worker is registered")
            };
            let after = rows(&db.store, &ids).await;
            check(&before, &after, |was, job, at| job.apply(Event::Finish { by: held(was) }, at).ok());
            for (was, status) in before.values().zip(statuses) {
                let expected = match to_domain(was).apply(Event::Finish { by: held(was) }, db.clock.now()) {
                    Ok(_) => SettleStatus::Applied,
                    Err(domain::Refusal::AlreadyEnded) => SettleStatus::AlreadyEnded,
                    Err(_) => SettleStatus::ClaimLost,
                };
                assert_eq!(status, expected, "{was:?}");
                assert_eq!(after[&was.id].result.is_some(), after[&was.id].state == JobState::Succeeded);
            }
        }
        assert_eq!(number(&db.store, "select count(*) from claims").await, 0, "nothing is left of the claims");
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement X3.
#[tokio::test]
async fn batched_finishes_match_the_domain_rules() {
    on_both(async |db| {
        let mut ids = jobs_in_various_states(&db).await;
        // Fresh jobs, which end in one batch: few of the jobs above share an epoch.
        let fresh = (0..20).map(|n| NewJob { extras: [1, 3, 7].contains(&n).then(|| Box::new(only(n))), ..job("q") });
        ids.extend(push_all(&db.store, fresh.collect()).await.iter().map(|job| job.id));
        let (worker, other) = (register(&db.store, &["q"]).await, register(&db.store, &["q"]).await);
        claim(&db.store, worker, 16).await;
        claim(&db.store, other, 8).await;
        // The first row is cached from its claim. A stale outcome for the others evicts their cached rows.
        for (by, shift) in [(worker, 0), (other, -1), (worker, 1), (other, 0)] {
            let before = rows(&db.store, &ids).await;
            let held = |row: &StoredJob| ClaimRef { worker: by, epoch: Epoch((row.epoch.0 + shift).max(0)) };
            let outcome = |row: &StoredJob| store::queue::settle::Outcome {
                job: row.id,
                epoch: held(row).epoch,
                end: End::Finish(None),
            };
            let outcomes: Vec<_> = before.values().map(outcome).collect();
            let settled = db.store.settle(T, by, outcomes).await.expect("settles");
            let Settled::Results(statuses) = settled else { panic!("the worker is registered") };
            let after = rows(&db.store, &ids).await;
            check(&before, &after, |was, job, at| job.apply(Event::Finish { by: held(was) }, at).ok());
            for (was, status) in before.values().zip(statuses) {
                let applies = to_domain(was).apply(Event::Finish { by: held(was) }, db.clock.now()).is_ok();
                assert_eq!(status == SettleStatus::Applied, applies, "{was:?}");
            }
        }
        assert_eq!(number(&db.store, "select count(*) from claims").await, 0, "nothing is left of the claims");
        assert_counters_match(&db.store).await;
    })
    .await;
}
