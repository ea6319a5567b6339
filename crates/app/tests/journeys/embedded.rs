//! The engine in the user's own process, without a server: the same handlers, the same promises.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::{HandlerError, JobContext, Statistics, Worker, WorkerBuilder};
use domain::{JobId, JobState};
use embedded::{Embedded, Job};
use engine::EngineOptions;
use store::jobs::get::StoredJob;
use store::{DatabaseUrl, Store, StoreOptions};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::support::{PATIENCE, Place, on_both, on_sqlite, until};

/// No pause of the machine is as long as this lease.
const LONG_LEASE_S: i64 = 600;

/// Opens an engine on the place. On PostgreSQL without a folder for large artifacts, which would be made right here.
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
    let job = Job::new("q", kind).expect("the names are valid").payload(kind).expect("a text is JSON");
    engine.enqueue(job).await.expect("the job is taken").id
}

async fn ended(engine: &Embedded, job: JobId) -> StoredJob {
    let job = engine.wait(job, PATIENCE).await.expect("the engine answers").expect("the job is there");
    assert!(job.state.is_terminal(), "{job:?}");
    job
}

async fn in_state(engine: &Embedded, job: JobId, state: JobState) -> StoredJob {
    until(&format!("the job is {state}"), async || {
        let job = engine.wait(job, Duration::ZERO).await.expect("the engine answers").expect("the job is there");
        (job.state == state).then_some(job)
    })
    .await
}

/// `echo` answers at once. `hold` says that it has begun, and answers when it is let go or called off.
fn handlers(
    builder: WorkerBuilder<embedded::Backend>,
    begun: watch::Sender<HashSet<JobId>>,
    gate: watch::Receiver<bool>,
) -> WorkerBuilder<embedded::Backend> {
    let hold = move |job: JobContext| {
        let mut gate = gate.clone();
        begun.send_modify(|jobs| {
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
        .drain_grace(PATIENCE)
        .handle("echo", |job: JobContext| async move { job.payload::<String>() })
        .handle("hold", hold)
}

struct Running {
    begun: watch::Receiver<HashSet<JobId>>,
    let_go: watch::Sender<bool>,
    stop: CancellationToken,
    worker: Arc<Worker<embedded::Backend>>,
    run: JoinSet<Statistics>,
}

impl Running {
    /// A job whose handler has begun is one that the worker knows of: the database says so before the worker hears it.
    async fn begun(&self, job: JobId) {
        until("the handler has begun", async || self.begun.borrow().contains(&job).then_some(())).await;
    }
}

fn run(engine: &Embedded, lease_s: i64) -> Running {
    let (told, begun) = watch::channel(HashSet::new());
    let (let_go, gate) = watch::channel(false);
    let worker = handlers(engine.worker(), told, gate).lease_s(lease_s).build().expect("the worker is complete");
    let (worker, stop) = (Arc::new(worker), CancellationToken::new());
    let mut run = JoinSet::new();
    {
        let (worker, stop) = (worker.clone(), stop.clone());
        run.spawn(async move { worker.run(stop).await.expect("nobody refuses the worker") });
    }
    Running { begun, let_go, stop, worker, run }
}

#[tokio::test(flavor = "multi_thread")]
async fn q1_q11_an_embedded_engine_runs_cancels_and_drains() {
    on_both(async |place| {
        let engine = open(&place.url).await.expect("the engine starts");
        let mut running = run(&engine, LONG_LEASE_S);
        let echo = ended(&engine, enqueue(&engine, "echo").await).await;
        assert_eq!((echo.state, echo.result.as_deref()), (JobState::Succeeded, Some("\"echo\"")));

        let called_off = enqueue(&engine, "hold").await;
        running.begun(called_off).await;
        let started = Instant::now();
        engine.cancel(called_off).await.expect("the job is canceled");
        assert_eq!(ended(&engine, called_off).await.state, JobState::Canceled);
        println!("canceled after {:?}", started.elapsed());

        // A drain lets the handler at work end, gives back what waits behind it, and takes nothing new.
        let held = enqueue(&engine, "hold").await;
        running.begun(held).await;
        let given_back = enqueue(&engine, "echo").await;
        until("the worker has it in hand", async || (running.worker.statistics().claimed == 4).then_some(())).await;
        running.stop.cancel();
        // Only now is it certain that the worker drains.
        assert_eq!(in_state(&engine, given_back, JobState::Queued).await.attempt, 0);
        let left = enqueue(&engine, "echo").await;
        running.let_go.send_replace(true);
        let statistics = running.run.join_next().await.expect("it was started").expect("it does not panic");
        assert_eq!((statistics.done, statistics.canceled, statistics.released), (2, 1, 1), "{statistics:?}");
        let held = ended(&engine, held).await;
        assert_eq!((held.state, held.attempt), (JobState::Succeeded, 1));
        for left in [given_back, left] {
            assert_eq!(in_state(&engine, left, JobState::Queued).await.attempt, 0);
        }
        engine.stop().await;
    })
    .await;
}

/// A life that ends without a goodbye: its runtime is dropped with everything in it.
fn live_and_die(url: String) -> JobId {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    runtime.block_on(async {
        let engine = open(&url).await.expect("the engine starts");
        let running = run(&engine, 1);
        let job = enqueue(&engine, "hold").await;
        running.begun(job).await;
        // Not dropped in order: a dropped worker's handler would see its gate go.
        std::mem::forget(running.let_go);
        job
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn q7_an_embedded_engine_resumes_what_a_dead_one_left_behind() {
    on_both(async |place: Place| {
        let url = place.url.clone();
        let job = tokio::task::spawn_blocking(move || live_and_die(url)).await.expect("it dies in silence");
        let engine = until("the file is free again", async || open(&place.url).await.ok()).await;
        // A machine that stood still may have cost the dead one its lease while it lived: what it left is what counts.
        let left = engine.wait(job, Duration::ZERO).await.expect("the engine answers").expect("the job is there");
        let mut running = run(&engine, LONG_LEASE_S);
        running.let_go.send_replace(true);
        let job = ended(&engine, job).await;
        assert_eq!((job.state, job.attempt), (JobState::Succeeded, left.attempt + 1));
        assert!(left.attempt >= 1, "the attempt that the dead one began counts: {left:?}");
        running.stop.cancel();
        running.run.join_next().await.expect("it was started").expect("it does not panic");
        engine.stop().await;
        drop(engine);
        place.verify().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_nobody_holds_lets_its_database_go() {
    on_sqlite(async |place| {
        let engine = open(&place.url).await.expect("opens");
        let job = enqueue(&engine, "echo").await;
        assert!(open(&place.url).await.is_err(), "one engine has the file");
        drop(engine);
        let next = until("the file can be had again", async || open(&place.url).await.ok()).await;
        assert!(next.wait(job, Duration::ZERO).await.expect("the engine answers").is_some());
        next.stop().await;
    })
    .await;
}
