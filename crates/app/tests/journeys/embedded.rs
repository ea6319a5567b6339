//! The engine embedded in the user's process, without a server: the same handlers and the same guarantees.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::{HandlerError, JobContext, Statistics, Worker, WorkerBuilder};
use domain::{JobId, JobState};
use embedded::{Embedded, JobBuilder};
use engine::EngineOptions;
use store::queue::get::StoredJob;
use store::{DatabaseUrl, Store, StoreOptions};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::support::{Fixture, TIMEOUT, before_timeout, eventually, on_both, on_sqlite};

/// Longer than any pause of a test machine.
const LONG_LEASE_S: i64 = 600;

/// Opens an engine. On PostgreSQL without a folder for artifacts, which would be created in the current directory.
async fn open(url: &str) -> Result<Embedded, embedded::EmbeddedError> {
    let parsed = DatabaseUrl::parse(url)?;
    if let DatabaseUrl::Sqlite(_) = parsed {
        return Embedded::open(url).await;
    }
    let store = Store::open(&parsed, StoreOptions { exclusive: true, ..StoreOptions::default() }).await?;
    store.migrate_up().await?;
    Embedded::on(store, EngineOptions { direct_url: Some(url.to_owned()), ..EngineOptions::default() }).await
}

async fn enqueue(engine: &Embedded, kind: &str) -> JobId {
    let job = JobBuilder::new("q", kind).expect("the names are valid").payload(kind).expect("a text is JSON");
    engine.enqueue(job).await.expect("the job is accepted").id
}

async fn ended(engine: &Embedded, job: JobId) -> StoredJob {
    let job = engine.wait(job, TIMEOUT).await.expect("the engine responds").expect("the job exists");
    assert!(job.state.is_terminal(), "{job:?}");
    job
}

async fn in_state(engine: &Embedded, job: JobId, state: JobState) -> StoredJob {
    eventually(&format!("the job is {state}"), async || {
        let job = engine.wait(job, Duration::ZERO).await.expect("the engine responds").expect("the job exists");
        (job.state == state).then_some(job)
    })
    .await
}

/// Adds two handlers. `echo` completes immediately. `hold` reports its start in `started` and completes when `gate`
/// opens or its job is canceled.
fn handlers(
    builder: WorkerBuilder<embedded::Backend>,
    started: watch::Sender<HashSet<JobId>>,
    gate: watch::Receiver<bool>,
) -> WorkerBuilder<embedded::Backend> {
    let hold = move |job: JobContext| {
        let mut gate = gate.clone();
        started.send_modify(|jobs| {
            jobs.insert(JobId::new(job.id()));
        });
        async move {
            tokio::select! {
                open = gate.wait_for(|open| *open) => open.map(drop).map_err(HandlerError::from)?,
                () = job.cancellation().cancelled() => return Err(HandlerError::cancel()),
            }
            Ok("held")
        }
    };
    builder
        .queue("q")
        .concurrency(1)
        .prefetch(1)
        .drain_grace(TIMEOUT)
        .handle("echo", |job: JobContext| async move { job.payload::<String>() })
        .handle("hold", hold)
}

struct Running {
    started: watch::Receiver<HashSet<JobId>>,
    open_gate: watch::Sender<bool>,
    stop: CancellationToken,
    worker: Arc<Worker<embedded::Backend>>,
    run: JoinSet<Statistics>,
}

impl Running {
    /// Waits until the handler has started: only then has the worker received the claim, which the database contains
    /// earlier.
    async fn handler_started(&mut self, job: JobId) {
        let started = self.started.wait_for(|jobs| jobs.contains(&job));
        before_timeout("the handler starts", started).await.expect("the worker runs");
    }
}

fn run(engine: &Embedded, lease_s: i64) -> Running {
    let (sender, started) = watch::channel(HashSet::new());
    let (open_gate, gate) = watch::channel(false);
    let worker = handlers(engine.worker(), sender, gate).lease_s(lease_s).build().expect("the worker is complete");
    let (worker, stop) = (Arc::new(worker), CancellationToken::new());
    let mut run = JoinSet::new();
    {
        let (worker, stop) = (worker.clone(), stop.clone());
        run.spawn(async move { worker.run(stop).await.expect("the engine accepts the worker") });
    }
    Running { started, open_gate, stop, worker, run }
}

/// Requirement Q1, Q11.
#[tokio::test(flavor = "multi_thread")]
async fn an_embedded_engine_runs_cancels_and_drains_jobs() {
    on_both(async |fixture| {
        let engine = open(&fixture.url).await.expect("the engine starts");
        let mut running = run(&engine, LONG_LEASE_S);
        let echo = ended(&engine, enqueue(&engine, "echo").await).await;
        assert_eq!((echo.state, echo.result.as_deref()), (JobState::Succeeded, Some("\"echo\"")));

        let canceled = enqueue(&engine, "hold").await;
        running.handler_started(canceled).await;
        let started = Instant::now();
        engine.cancel(canceled).await.expect("the job is canceled");
        assert_eq!(ended(&engine, canceled).await.state, JobState::Canceled);
        println!("canceled after {:?}", started.elapsed());

        // A draining worker completes the running job, releases prefetched jobs and claims no more.
        let held = enqueue(&engine, "hold").await;
        running.handler_started(held).await;
        let released = enqueue(&engine, "echo").await;
        eventually("the worker has prefetched the job", async || {
            (running.worker.statistics().claimed == 4).then_some(())
        })
        .await;
        running.stop.cancel();
        // The released job shows that the worker drains.
        assert_eq!(in_state(&engine, released, JobState::Queued).await.attempt, 0);
        let unclaimed = enqueue(&engine, "echo").await;
        running.open_gate.send_replace(true);
        let statistics =
            running.run.join_next().await.expect("the worker was started").expect("the worker does not panic");
        assert_eq!((statistics.done, statistics.canceled, statistics.released), (2, 1, 1), "{statistics:?}");
        let held = ended(&engine, held).await;
        assert_eq!((held.state, held.attempt), (JobState::Succeeded, 1));
        for job in [released, unclaimed] {
            assert_eq!(in_state(&engine, job, JobState::Queued).await.attempt, 0);
        }
        engine.stop().await;
    })
    .await;
}

/// Runs an engine and drops its runtime with everything in it, like a killed process. Returns the running job.
fn run_until_killed(url: String) -> JobId {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    runtime.block_on(async {
        let engine = open(&url).await.expect("the engine starts");
        let mut running = run(&engine, 1);
        let job = enqueue(&engine, "hold").await;
        running.handler_started(job).await;
        // Not dropped, because the handler would observe the closed gate.
        std::mem::forget(running.open_gate);
        job
    })
}

/// Requirement Q7.
#[tokio::test(flavor = "multi_thread")]
async fn an_embedded_engine_resumes_the_job_of_a_killed_process() {
    on_both(async |fixture: Fixture| {
        let url = fixture.url.clone();
        let job = tokio::task::spawn_blocking(move || run_until_killed(url)).await.expect("the process does not panic");
        let engine = eventually("the database file is released", async || open(&fixture.url).await.ok()).await;
        // On a paused machine the lease may have expired before the kill, so the attempts are read from the database.
        let before = engine.wait(job, Duration::ZERO).await.expect("the engine responds").expect("the job exists");
        let mut running = run(&engine, LONG_LEASE_S);
        running.open_gate.send_replace(true);
        let job = ended(&engine, job).await;
        assert_eq!((job.state, job.attempt), (JobState::Succeeded, before.attempt + 1));
        assert!(before.attempt >= 1, "the interrupted attempt counts: {before:?}");
        running.stop.cancel();
        running.run.join_next().await.expect("the worker was started").expect("the worker does not panic");
        engine.stop().await;
        drop(engine);
        fixture.verify().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_engine_releases_its_database_file() {
    on_sqlite(async |fixture| {
        let engine = open(&fixture.url).await.expect("opens");
        let job = enqueue(&engine, "echo").await;
        assert!(open(&fixture.url).await.is_err(), "only one engine can open the file");
        drop(engine);
        let next = eventually("the file can be opened again", async || open(&fixture.url).await.ok()).await;
        assert!(next.wait(job, Duration::ZERO).await.expect("the engine responds").is_some());
        next.stop().await;
    })
    .await;
}
