//! Subjects under many hands at once: nobody overlaps, and those that fail cost the others nothing.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};

use domain::{Condition, ProcessSettings, Selector, Test};
use store::Store;
use store::jobs::claim::ClaimedJob;
use store::jobs::enqueue::{Extras, NewJob};
use store::jobs::settle::{End, Outcome};
use testkit::{job, label, name, on_both, on_postgres};

use crate::subjects::{declare, facts, figures, process, scan, set};
use crate::support::*;

const SUBJECTS: usize = 6;
const ROUNDS: usize = 8;

/// Who is being worked on, by which process: what the claims say must hold, watched from outside.
#[derive(Default)]
struct Watch(Mutex<HashSet<(String, String)>>);

impl Watch {
    fn begin(&self, job: &ClaimedJob) {
        let on = on(job);
        let mut busy = self.0.lock().expect("no watcher panics");
        assert!(busy.insert(on.clone()), "two claims on {on:?}");
        // `install` and `wipe` exclude each other.
        for (one, other) in [("install", "wipe"), ("wipe", "install")] {
            let excluded = (on.0.clone(), other.to_owned());
            assert!(on.1 != one || !busy.contains(&excluded), "{one} and {other} on {}", on.0);
        }
    }

    fn end(&self, job: &ClaimedJob) {
        self.0.lock().expect("no watcher panics").remove(&on(job));
    }
}

fn on(job: &ClaimedJob) -> (String, String) {
    (job.subject.clone().expect("has a subject"), job.process.clone().expect("has a process"))
}

/// Claims and ends jobs until none is left.
async fn work(store: Store, watch: Arc<Watch>, number: usize) -> usize {
    // All of them move the one clock, and none beats.
    let worker = patient(&store).await;
    let mut done = 0;
    while number_left(&store).await > 0 {
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
        // Failures back off for a second of a clock that the test moves.
        store.clock().advance_ms(400);
        store.scan().await.expect("scans");
    }
    done
}

async fn number_left(store: &Store) -> i64 {
    number(store, "select count(*) from jobs").await
}

#[tokio::test(flavor = "multi_thread")]
async fn w2_three_workers_on_six_subjects_never_overlap() {
    on_both(async |db| {
        let never =
            Selector { all: vec![Condition { fact: name("never"), test: Test::Exists(true) }], ..Selector::default() };
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

#[tokio::test(flavor = "multi_thread")]
async fn w1_nodes_that_scan_at_once_make_each_job_once() {
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
        assert_eq!(figures(&db.store, "install").await, (15, 25, 0));
        assert_eq!(number(&db.store, "select count(distinct subject) from jobs").await, 25);
        assert_eq!(db.store.verify().await.expect("verifies").findings, []);
    })
    .await;
}

#[tokio::test]
async fn w1_a_job_in_other_hands_may_be_ending_and_is_not_the_subjects_work() {
    on_postgres(async |db| {
        push(&db.store, crate::subjects::on("m-1", "install")).await;
        declare(&db.store, "install", process()).await;
        set(&db.store, "m-1", &[("state", "1")]).await;
        let settles = psql(&db.admin).await;
        settles.client.batch_execute("begin; select id from windlass.jobs for update").await.expect("it has the job");
        assert_eq!((scan(&db.store).await, figures(&db.store, "install").await), (0, (1, 0, 0)));
        settles.client.batch_execute("commit").await.expect("it lets go");
        assert_eq!((scan(&db.store).await, figures(&db.store, "install").await), (1, (0, 1, 0)));
        assert_eq!(number_left(&db.store).await, 1, "the producer's own job is it");
        assert_eq!(db.store.verify().await.expect("verifies").findings, []);
    })
    .await;
}

/// Ends every job of one claim: subjects below `failing` always fail.
async fn round(store: &Store, worker: domain::WorkerId, failing: usize, tries: &mut BTreeMap<String, usize>) -> usize {
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
        *tries.entry(job.subject.clone().unwrap_or_default()).or_default() += 1;
    }
    let outcomes: Vec<Outcome> = claimed.iter().map(outcome).collect();
    store.settle(T, worker, outcomes).await.expect("settles");
    claimed.len()
}

#[tokio::test]
async fn w5_of_a_thousand_subjects_ten_that_always_fail_cost_the_others_nothing() {
    on_both(async |db| {
        // Longer than all rounds take on any machine: who failed in the first is not tried again in the last.
        let backoff = domain::RetryPolicy::new(Some(600), Some(36_000), Some(2.0), None).ok();
        declare(&db.store, "install", ProcessSettings { max_active: Some(100), backoff, ..process() }).await;
        scan(&db.store).await;
        let changes = (0..1_000).map(|number| set_quietly(&db.store, number));
        futures(changes).await;
        let worker = register(&db.store, &["q"]).await;
        let mut tries = BTreeMap::new();
        let mut rounds = 0;
        while figures(&db.store, "install").await.0 > 0 {
            scan(&db.store).await;
            round(&db.store, worker, 10, &mut tries).await;
            rounds += 1;
            assert!(rounds <= 10, "a thousand subjects by a hundred take ten rounds, whoever fails among them");
        }
        assert_eq!(tries.len(), 1_000);
        assert!(tries.values().all(|tries| *tries == 1), "nobody was tried twice");
        assert_eq!(figures(&db.store, "install").await, (0, 0, 10));
        // Ten hours later the ten have been tried six times, at 0, 600, 1800, 4200, 9000 and 18600 s, and nobody else.
        for _ in 0..120 {
            db.pass_ms(300_000).await;
            let worker = register(&db.store, &["q"]).await;
            scan(&db.store).await;
            round(&db.store, worker, 10, &mut tries).await;
        }
        let failing: Vec<usize> = tries.iter().filter(|(_, tries)| **tries > 1).map(|(_, tries)| *tries).collect();
        assert_eq!(failing, [6; 10]);
        assert_eq!(db.store.verify().await.expect("verifies").findings, []);
    })
    .await;
}

async fn set_quietly(store: &Store, number: usize) {
    set(store, &format!("m-{number}"), &[("state", "1")]).await;
}

/// All of them, a few at a time.
async fn futures(work: impl Iterator<Item = impl Future<Output = ()>>) {
    use futures_util::StreamExt;
    futures_util::stream::iter(work).buffer_unordered(16).collect::<Vec<()>>().await;
}
