//! The workload of `serve --demo`: several queues, two models on one worker, jobs that fail and are retried, workflows, a
//! fleet, and triggers with their events.

mod events;
mod fleet;
mod workflows;

use std::sync::Arc;
use std::time::Duration;

use client::{Client, HandlerError, JobContext};
use embedded::{Embedded, JobBuilder};
use engine::Engine;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The server of the demo as its clients see it.
pub(crate) struct DemoServer {
    pub(crate) client: Client,
    pub(crate) url: String,
}

/// Produces and runs jobs until it is stopped. Without a `server` there are no triggers, subjects and deliveries.
pub(crate) async fn run(engine: Arc<Engine>, server: Option<DemoServer>, stop: CancellationToken) {
    let embedded = Embedded::of(engine, None);
    let tracker = TaskTracker::new();
    if let Some(DemoServer { client, url }) = server {
        match events::declare(&client, &url).await {
            Ok(()) => {
                tracker.spawn(fleet::work(embedded.clone(), stop.clone()));
                tracker.spawn(fleet::manage(client.clone(), stop.clone()));
                tracker.spawn(events::publish(client, stop.clone()));
            }
            Err(error) => tracing::warn!(%error, "the demo cannot declare its triggers"),
        }
    }
    tracker.spawn(work(embedded.clone(), stop.clone()));
    tracker.spawn(infer(embedded.clone(), stop.clone()));
    tracker.spawn(workflows::pipelines(embedded.clone(), stop.clone()));
    tracker.spawn(workflows::approvals(embedded.clone(), stop.clone()));
    produce(&embedded, &stop).await;
    tracker.close();
    tracker.wait().await;
}

async fn produce(engine: &Embedded, stop: &CancellationToken) {
    for round in 0u64.. {
        if let Err(error) = enqueue_round(engine, round).await {
            tracing::warn!(%error, "the demo cannot enqueue jobs");
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(Duration::from_millis(700)) => {}
        }
    }
}

async fn enqueue_round(engine: &Embedded, round: u64) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut jobs = vec![JobBuilder::new("mail", "welcome")?.payload(&serde_json::json!({ "user": round }))?];
    let image = ["registry/api:1.4", "registry/web:2.0", "registry/broken:0.1"][(round % 3) as usize];
    if round.is_multiple_of(2) {
        let retry = domain::RetryPolicy::new(Some(2), Some(10), Some(2.0), Some(0.1))?;
        let scan = JobBuilder::new("scans", "image.scan")?.subject(image)?.tag("nightly")?.retry(retry);
        jobs.push(scan.payload(&serde_json::json!({ "image": image }))?);
    }
    let model = if round % 5 < 3 { "llama3" } else { "mistral" };
    jobs.push(
        JobBuilder::new("inference", "chat")?
            .affinity(model)?
            .priority(if round.is_multiple_of(7) { 10 } else { 0 })
            .payload(&serde_json::json!({ "model": model, "prompt": format!("question {round}") }))?,
    );
    if round % 10 == 9 {
        let later = jiff::Timestamp::now() + Duration::from_secs(15);
        jobs.push(JobBuilder::new("mail", "digest")?.run_at(later).payload(&serde_json::json!({ "round": round }))?);
    }
    engine.enqueue_all(jobs).await?;
    Ok(())
}

/// Runs mail and scan jobs; scans of one image always fail.
async fn work(engine: Embedded, stop: CancellationToken) {
    let worker = engine
        .worker()
        .name("demo-general")
        .queues(["mail", "scans"])
        .concurrency(4)
        .prefetch(0)
        .handle("welcome", |_: JobContext| async { pause(80).await.map(|()| "sent") })
        .handle("digest", |_: JobContext| async { pause(200).await.map(|()| "sent") })
        .handle("receipt", |_: JobContext| async { pause(120).await.map(|()| "sent") })
        .handle("notice", |_: JobContext| async { pause(60).await.map(|()| "sent") })
        .handle("image.scan", scan)
        .build();
    run_worker(worker, stop).await;
}

async fn scan(job: JobContext) -> Result<serde_json::Value, HandlerError> {
    for (step, phase) in ["resolve", "fetch", "analyze", "report"].into_iter().enumerate() {
        job.phase(phase);
        job.progress(step as f64 / 4.0);
        pause(400).await?;
        if phase == "analyze" && job.subject().is_some_and(|subject| subject.contains("broken")) {
            return Err(HandlerError::retryable("LAYER_EXTRACT_FAILED", "layer 3 is not a tar archive"));
        }
    }
    Ok(serde_json::json!({ "findings": job.attempt() * 3 }))
}

/// A worker that can load one model at a time. It drains the jobs of the loaded model before it swaps.
async fn infer(engine: Embedded, stop: CancellationToken) {
    let worker = engine
        .worker()
        .name("demo-gpu")
        .queue("inference")
        .concurrency(1)
        .prefetch(0)
        .loader(|_: String| async { pause(1_500).await })
        .handle("chat", |job: JobContext| async move {
            pause(250).await?;
            Ok::<_, HandlerError>(format!("an answer by {}", job.affinity().unwrap_or("no model")))
        })
        .build();
    run_worker(worker, stop).await;
}

async fn pause(millis: u64) -> Result<(), HandlerError> {
    tokio::time::sleep(Duration::from_millis(millis)).await;
    Ok(())
}

async fn run_worker<B: client::Backend>(
    worker: Result<client::Worker<B>, client::WorkerBuildError>,
    stop: CancellationToken,
) {
    let worker = match worker {
        Ok(worker) => worker,
        Err(error) => return tracing::error!(%error, "cannot build a demo worker"),
    };
    if let Err(error) = worker.run(stop).await {
        tracing::warn!(%error, "a demo worker stopped");
    }
}
