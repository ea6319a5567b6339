//! The engine in the user's own process, without a server: the same handlers, the same promises.

use std::time::{Duration, Instant};

use client::{HandlerError, JobContext, Statistics, WorkerBuilder};
use domain::{JobId, JobState};
use embedded::{Embedded, Job};
use engine::EngineOptions;
use store::jobs::get::StoredJob;
use store::{DatabaseUrl, Store, StoreOptions};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::support::{PATIENCE, Place, on_both, until};

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

/// `echo` answers at once, `hold` when it is let go or called off.
fn handlers(
    builder: WorkerBuilder<embedded::Backend>,
    gate: watch::Receiver<bool>,
) -> WorkerBuilder<embedded::Backend> {
    let hold = move |job: JobContext| {
        let mut gate = gate.clone();
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
        .concurrency(4)
        .prefetch(0)
        .handle("echo", |job: JobContext| async move { job.payload::<String>() })
        .handle("hold", hold)
}

struct Running {
    let_go: watch::Sender<bool>,
    stop: CancellationToken,
    worker: JoinSet<Statistics>,
}

fn run(engine: &Embedded, lease_s: i64) -> Running {
    let (let_go, gate) = watch::channel(false);
    let worker = handlers(engine.worker(), gate).lease_s(lease_s).build().expect("the worker is complete");
    let stop = CancellationToken::new();
    let until = stop.clone();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { worker.run(until).await.expect("nobody refuses the worker") });
    Running { let_go, stop, worker: tasks }
}

#[tokio::test(flavor = "multi_thread")]
async fn q1_q11_an_embedded_engine_runs_cancels_and_drains() {
    on_both(async |place| {
        let engine = open(&place.url).await.expect("the engine starts");
        let mut running = run(&engine, 30);
        let echo = ended(&engine, enqueue(&engine, "echo").await).await;
        assert_eq!((echo.state, echo.result.as_deref()), (JobState::Succeeded, Some("\"echo\"")));

        let called_off = enqueue(&engine, "hold").await;
        in_state(&engine, called_off, JobState::Working).await;
        let started = Instant::now();
        engine.cancel(called_off).await.expect("the job is canceled");
        assert_eq!(ended(&engine, called_off).await.state, JobState::Canceled);
        println!("canceled after {:?}", started.elapsed());

        // A drain lets the handler at work end, and takes nothing new.
        let held = enqueue(&engine, "hold").await;
        in_state(&engine, held, JobState::Working).await;
        running.stop.cancel();
        let left = enqueue(&engine, "echo").await;
        running.let_go.send_replace(true);
        let statistics = running.worker.join_next().await.expect("it was started").expect("it does not panic");
        assert_eq!((statistics.done, statistics.canceled), (2, 1), "{statistics:?}");
        let held = ended(&engine, held).await;
        assert_eq!((held.state, held.attempt), (JobState::Succeeded, 1));
        assert_eq!(in_state(&engine, left, JobState::Queued).await.attempt, 0);
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
        in_state(&engine, job, JobState::Working).await;
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
        let mut running = run(&engine, 30);
        running.let_go.send_replace(true);
        let job = ended(&engine, job).await;
        assert_eq!((job.state, job.attempt), (JobState::Succeeded, 2));
        running.stop.cancel();
        running.worker.join_next().await.expect("it was started").expect("it does not panic");
        engine.stop().await;
        drop(engine);
        place.verify().await;
    })
    .await;
}
