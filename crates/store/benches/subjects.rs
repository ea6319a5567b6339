//! Benchmarks a large fleet: 100,000 subjects and 10 processes. Run `cargo bench -p windlass-store --bench subjects`.
//! It uses PostgreSQL if `WINDLASS_TEST_POSTGRES` is set, otherwise SQLite.

#![expect(clippy::disallowed_methods, reason = "the environment selects the benchmark's database")]

use std::time::{Duration, Instant};

use domain::{Condition, FactValue, ProcessSettings, Selector, Test};
use futures_util::StreamExt;
use store::Store;
use store::fleet::subjects::put::SubjectChange;
use store::queue::claim::Claimed;
use store::queue::settle::{End, Outcome};
use store::queue::workers::register::NewWorker;
use testkit::{Database, label, name};

const T: domain::TenantId = domain::TenantId::DEFAULT;
const SUBJECTS: usize = 100_000;
const PROCESSES: usize = 10;
const CONCURRENCY: usize = 64;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let on_postgres = std::env::var("WINDLASS_TEST_POSTGRES").is_ok();
        let db = if on_postgres { Database::postgres().await } else { Database::sqlite().await };
        println!("on {}", if on_postgres { "PostgreSQL" } else { "SQLite" });
        fleet(&db.store).await;
        let without = throughput(&db.store, "calm", 0).await;
        let with = throughput(&db.store, "stormy", 10).await;
        println!("1,000 subjects, none failing: {without:.0} jobs/s; ten always failing: {with:.0} jobs/s");
    });
}

fn settings(fact: &str, value: usize) -> ProcessSettings {
    let test = Test::Equals(FactValue(value.to_string()));
    ProcessSettings {
        selector: Selector { all: vec![Condition::Fact { fact: name(fact), test }], ..Selector::default() },
        queue: name("q"),
        kind: name("k"),
        payload: None,
        max_active: None,
        every_s: None,
        excludes: Vec::new(),
        backoff: None,
    }
}

async fn set(store: &Store, subject: String, fact: &str, value: usize) {
    let facts = vec![(name(fact), Some(value.to_string().into())), (name("heartbeat"), Some("true".into()))];
    let change = SubjectChange { id: label(&subject), kind: None, facts, actor: "bench".into() };
    store.put_subject(T, change).await.expect("puts");
}

/// Runs `count` futures with bounded concurrency. Returns the rate per second.
async fn run_all<F: Future<Output = ()>>(count: usize, one: impl Fn(usize) -> F) -> f64 {
    let started = Instant::now();
    futures_util::stream::iter((0..count).map(one)).buffer_unordered(CONCURRENCY).collect::<Vec<()>>().await;
    count as f64 / started.elapsed().as_secs_f64()
}

async fn scan(store: &Store) -> (Duration, usize, usize) {
    let started = Instant::now();
    let (mut evaluated, mut jobs) = (0, 0);
    loop {
        let scanned = store.scan().await.expect("scans");
        evaluated += scanned.evaluated;
        jobs += scanned.jobs;
        if !scanned.more {
            return (started.elapsed(), evaluated, jobs);
        }
    }
}

async fn fleet(store: &Store) {
    let rate = run_all(SUBJECTS, |number| set(store, format!("m-{number:06}"), "state", 99)).await;
    println!("{SUBJECTS} subjects created: {rate:.0}/s");
    for process in 0..PROCESSES {
        store.put_process(T, name(&format!("p{process}")), settings("state", process), "b".into()).await.expect("puts");
    }
    let (took, evaluated, _) = scan(store).await;
    println!("{PROCESSES} processes declared: {evaluated} evaluated in {took:.1?}");
    let rate = run_all(20_000, |number| set(store, format!("m-{number:06}"), "state", 99)).await;
    println!("heartbeats that change nothing: {rate:.0}/s");
    let (took, evaluated, jobs) = scan(store).await;
    println!("scan with nothing changed: {took:.1?} ({evaluated} evaluated, {jobs} jobs)");
    run_all(100, |number| set(store, format!("m-{:06}", number * 997), "state", number % PROCESSES)).await;
    let (took, evaluated, jobs) = scan(store).await;
    println!("scan with 100 facts changed: {took:.1?} ({evaluated} evaluated, {jobs} jobs)");
    let started = Instant::now();
    let processes = store.list_processes(T, None, 100).await.expect("lists");
    let active: i64 = processes.iter().map(|process| process.counts.active).sum();
    println!("counts of {} processes: {:.1?} ({active} active)", processes.len(), started.elapsed());
}

/// Runs 1000 subjects through one process, of which `failing` always fail. Returns successful jobs per second.
async fn throughput(store: &Store, fact: &str, failing: usize) -> f64 {
    store
        .put_process(T, name(fact), ProcessSettings { queue: name(fact), ..settings(fact, 1) }, "b".into())
        .await
        .expect("puts");
    scan(store).await;
    run_all(1_000, |number| set(store, format!("{fact}-{number:04}"), fact, 1)).await;
    let new =
        NewWorker { name: "w".into(), queues: vec![name(fact)], kinds: None, affinities: None, lease_ms: 600_000 };
    let worker = store.register_worker(T, new).await.expect("registers");
    let started = Instant::now();
    let mut succeeded = 0;
    while succeeded < 1_000 - failing {
        store.scan().await.expect("scans");
        let Claimed::Jobs { jobs, .. } = store.claim(T, worker, 50, None).await.expect("claims") else { return 0.0 };
        let outcome = |job: &store::queue::claim::ClaimedJob| {
            let subject = job.subject.clone().unwrap_or_default();
            let number: usize = subject.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or(0);
            let error = domain::JobError { code: "boom".into(), message: String::new(), retryable: true };
            let facts = vec![(name(fact), Some("2".into()))];
            let end = if number < failing { End::Fail(error) } else { End::FinishWith { result: None, facts } };
            Outcome { job: job.id, epoch: job.epoch, end }
        };
        let outcomes: Vec<Outcome> = jobs.iter().map(outcome).collect();
        succeeded += outcomes.iter().filter(|outcome| matches!(outcome.end, End::FinishWith { .. })).count();
        store.settle(T, worker, outcomes).await.expect("settles");
    }
    succeeded as f64 / started.elapsed().as_secs_f64()
}
