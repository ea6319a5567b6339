//! Concurrent work on subjects: exclusions hold, and failing subjects do not slow down the others.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};

use domain::{Condition, ProcessSettings, Selector, Test};
use store::Store;
use store::queue::claim::ClaimedJob;
use store::queue::enqueue::{Extras, NewJob};
use store::queue::settle::{End, Outcome};
use testkit::{job, label, name, on_both, on_postgres};

use crate::fleet::subjects::{counts, declare, facts, process, scan, set};
use crate::support::*;

const SUBJECTS: usize = 6;
const ROUNDS: usize = 8;

/// Tracks the subjects under work and their processes, to check exclusion independently of the store.
#[derive(Default)]
struct Watch(Mutex<HashSet<(String, String)>>);

impl Watch {
    fn begin(&self, job: &ClaimedJob) {
        let on = on(job);
        let mut busy = self.0.lock().expect("lock poisoned");
        assert!(busy.insert(on.clone()), "two claims on {on:?}");
        // `install` and `wipe` exclude each other.
        for (one, other) in [("install", "wipe"), ("wipe", "install")] {
            let excluded = (on.0.clone(), other.to_owned());
            assert!(on.1 != one || !busy.contains(&excluded), "{one} and {other} on {}", on.0);
        }
    }

    fn end(&self, job: &ClaimedJob) {
        self.0.lock().expect("lock poisoned").remove(&on(job));
    }
}

fn on(job: &ClaimedJob) -> (String, String) {
    (job.subject.clone().expect("has a subject"), job.process.clone().expect("has a process"))
}

/// Claims and ends jobs until none remains.
async fn work(store: Store, watch: Arc<Watch>, number: usize) -> usize {
    // All workers advance the shared clock, and no service heartbeat runs.
    let worker = register_with_long_lease(&store).await;
    let mut done = 0;
    while remaining_jobs(&store).await > 0 {
        for job in claim(&store, worker, 1 + number % 3).await {
            watch.begin(&job);
            tokio::task::yield_now().await;
            watch.end(&job);
            let end = match (done + number) % 4 {
                0 => End::Fail(domain::JobError { retryable: false, ..boom() }),
                1 => End::Cancel,
                _ => End::Finish(None),
            };
            settle(&store, worker, job.id, job.epoch, end).await;
            done += 1;
        }
        // Failures back off for a second of the test's clock.
        store.clock().advance_ms(400);
        store.scan().await.expect("scans");
    }
    done
}

async fn remaining_jobs(store: &Store) -> i64 {
    number(store, "select count(*) from jobs").await
}

/// Requirement W2.
#[tokio::test(flavor = "multi_thread")]
async fn three_workers_on_six_subjects_never_overlap() {
    on_both(async |db| {
        let never = Selector {
            all: vec![Condition::Fact { fact: name("never"), test: Test::Exists(true) }],
            ..Selector::default()
        };
        let install = ProcessSettings { selector: never, excludes: vec![name("wipe")], ..process() };
        declare(&db.store, "install", install).await;
        let mut jobs = Vec::new();
        for round in 0..ROUNDS {
            for subject in 0..SUBJECTS {
                let process = ["install", "wipe", "ping"][(round + subject) % 3];
                let retry = domain::RetryPolicy::new(Some(1), None, None, None).ok();
                let extras = Extras {
                    subject: Some(label(&format!("m-{subject}"))),
                    process: Some(name(process)),
                    retry,
                    ..Extras::default()
                };
                jobs.push(NewJob { extras: Some(Box::new(extras)), ..job("q") });
            }
        }
        push_all(&db.store, jobs).await;
        let watch = Arc::new(Watch::default());
        let mut workers = tokio::task::JoinSet::new();
        for number in 0..3 {
            // SQLite has one node; PostgreSQL any number.
            let store = if db.store.is_postgres() { db.another_node().await } else { db.store.clone() };
            workers.spawn(work(store, watch.clone(), number));
        }
        let done: usize = workers.join_all().await.into_iter().sum();
        assert_eq!(done, ROUNDS * SUBJECTS);
        assert_eq!(number(&db.store, "select count(*) from holds").await, 0);
        assert_eq!(db.store.verify().await.expect("verifies").findings, []);
    })
    .await;
}

/// Requirement W1.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_scans_create_each_job_once() {
    on_both(async |db| {
        declare(&db.store, "install", ProcessSettings { max_active: Some(25), ..process() }).await;
        for subject in 0..40 {
            set(&db.store, &format!("m-{subject:02}"), &[("state", "1")]).await;
        }
        let mut nodes = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let store = if db.store.is_postgres() { db.another_node().await } else { db.store.clone() };
            nodes.spawn(async move {
                let mut made = 0;
                for _ in 0..5 {
                    made += store.scan().await.expect("scans").jobs;
                }
                made
            });
        }
        assert_eq!(nodes.join_all().await.into_iter().sum::<usize>(), 25);
        assert_eq!(counts(&db.store, "install").await, (15, 25, 0));
        assert_eq!(number(&db.store, "select count(distinct subject) from jobs").await, 25);
        assert_eq!(db.store.verify().await.expect("verifies").findings, []);
    })
    .await;
}

/// Requirement W1.
#[tokio::test]
async fn a_job_locked_by_another_transaction_does_not_count_as_subject_work() {
    on_postgres(async |db| {
        push(&db.store, crate::fleet::subjects::on("m-1", "install")).await;
        declare(&db.store, "install", process()).await;
        set(&db.store, "m-1", &[("state", "1")]).await;
        let settles = psql(&db.admin).await;
        settles.client.batch_execute("begin; select id from windlass.jobs for update").await.expect("it has the job");
        assert_eq!((scan(&db.store).await, counts(&db.store, "install").await), (0, (1, 0, 0)));
        settles.client.batch_execute("commit").await.expect("commits");
        assert_eq!((scan(&db.store).await, counts(&db.store, "install").await), (1, (0, 1, 0)));
        assert_eq!(remaining_jobs(&db.store).await, 1, "only the producer's job remains");
        assert_eq!(db.store.verify().await.expect("verifies").findings, []);
    })
    .await;
}

/// Claims once and ends every job: subjects below `failing` always fail.
async fn round(
    store: &Store,
    worker: domain::WorkerId,
    failing: usize,
    attempts: &mut BTreeMap<String, usize>,
) -> usize {
    let claimed = claim(store, worker, 100).await;
    let outcome = |job: &ClaimedJob| {
        let subject = job.subject.clone().unwrap_or_default();
        let number: usize = subject[2..].parse().expect("a number");
        let end = if number < failing {
            End::Fail(boom())
        } else {
            End::FinishWith { result: None, facts: facts(&[("state", "2")]) }
        };
        Outcome { job: job.id, epoch: job.epoch, end }
    };
    for job in &claimed {
        *attempts.entry(job.subject.clone().unwrap_or_default()).or_default() += 1;
    }
    let outcomes: Vec<Outcome> = claimed.iter().map(outcome).collect();
    store.settle(T, worker, outcomes).await.expect("settles");
    claimed.len()
}

/// Requirement W5.
#[tokio::test]
async fn ten_failing_subjects_do_not_delay_a_thousand_others() {
    on_both(async |db| {
        // Longer than all rounds take on any machine, so that a failed subject is not retried within the test.
        let backoff = domain::RetryPolicy::new(Some(600), Some(36_000), Some(2.0), None).ok();
        declare(&db.store, "install", ProcessSettings { max_active: Some(100), backoff, ..process() }).await;
        scan(&db.store).await;
        let changes = (0..1_000).map(|number| set_quietly(&db.store, number));
        futures(changes).await;
        let worker = register(&db.store, &["q"]).await;
        let mut attempts = BTreeMap::new();
        let mut rounds = 0;
        while counts(&db.store, "install").await.0 > 0 {
            scan(&db.store).await;
            round(&db.store, worker, 10, &mut attempts).await;
            rounds += 1;
            assert!(rounds <= 10, "1000 subjects in claims of 100 take ten rounds, whatever fails");
        }
        assert_eq!(attempts.len(), 1_000);
        assert!(attempts.values().all(|attempts| *attempts == 1), "no subject was attempted twice");
        assert_eq!(counts(&db.store, "install").await, (0, 0, 10));
        // Ten hours later the ten failing subjects have been attempted six times, at 0, 600, 1800, 4200, 9000 and
        // 18600 s, and no other subject again.
        for _ in 0..120 {
            db.pass_ms(300_000).await;
            let worker = register(&db.store, &["q"]).await;
            scan(&db.store).await;
            round(&db.store, worker, 10, &mut attempts).await;
        }
        let failing: Vec<usize> =
            attempts.iter().filter(|(_, attempts)| **attempts > 1).map(|(_, attempts)| *attempts).collect();
        assert_eq!(failing, [6; 10]);
        assert_eq!(db.store.verify().await.expect("verifies").findings, []);
    })
    .await;
}

async fn set_quietly(store: &Store, number: usize) {
    set(store, &format!("m-{number}"), &[("state", "1")]).await;
}

/// Runs all futures with bounded concurrency.
async fn futures(work: impl Iterator<Item = impl Future<Output = ()>>) {
    use futures_util::StreamExt;
    futures_util::stream::iter(work).buffer_unordered(16).collect::<Vec<()>>().await;
}
