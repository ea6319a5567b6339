//! The fleet of the demo: machines that processes install and check, one with a dead disk and one that is locked out.

use std::time::Duration;

use client::wire::{BackoffRequest, SubjectRequest};
use client::{Client, ClientError, HandlerError, JobContext};
use embedded::Embedded;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{pause, run_worker};

const MACHINES: usize = 8;
const DEAD_DISK: &str = "machine-4";
const LOCKED_OUT: &str = "machine-8";
const REINSTALL_EVERY: Duration = Duration::from_secs(40);

/// Declares the machines, and reinstalls one of them from time to time.
pub(super) async fn manage(client: Client, stop: CancellationToken) {
    let declared = declare(&client).await;
    if let Err(error) = declared {
        return tracing::warn!(%error, "the demo cannot declare its machines");
    }
    for round in 0.. {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(REINSTALL_EVERY) => {}
        }
        let machine = format!("machine-{}", 1 + round % 3);
        if let Err(error) = client.set_subject(&machine, &machine_with(&[("state", json!("provided"))])).await {
            tracing::warn!(%error, "the demo cannot change a machine");
        }
    }
}

async fn declare(client: &Client) -> Result<(), ClientError> {
    for number in 1..=MACHINES {
        let facts = [("state", json!("provided")), ("cores", json!(8 << (number % 3))), ("rack", json!(number % 2))];
        client.set_subject(&format!("machine-{number}"), &machine_with(&facts)).await?;
    }
    let cause = "The disk is being replaced.".into();
    let lockout = BackoffRequest { until: None, for_s: Some(2 * 3_600), cause };
    client.lock_out(LOCKED_OUT, "*", &lockout).await?;
    Ok(())
}

fn machine_with(facts: &[(&str, serde_json::Value)]) -> SubjectRequest {
    let raw = |value: &serde_json::Value| serde_json::value::to_raw_value(value).ok();
    let facts = facts.iter().filter_map(|(name, value)| Some(((*name).to_owned(), raw(value)?))).collect();
    SubjectRequest { kind: Some("machine".into()), facts }
}

/// Runs the jobs that the processes create.
pub(super) async fn work(engine: Embedded, stop: CancellationToken) {
    let worker = engine
        .worker()
        .name("demo-fleet")
        .queue("fleet")
        .concurrency(2)
        .prefetch(0)
        .handle("install", install)
        .handle("check", check)
        .build();
    run_worker(worker, stop).await;
}

async fn install(job: JobContext) -> Result<&'static str, HandlerError> {
    for (step, phase) in ["resolve", "fetch", "analyze", "report"].into_iter().enumerate() {
        job.phase(phase);
        job.progress(step as f64 / 4.0);
        pause(900).await?;
        if phase == "fetch" && job.subject() == Some(DEAD_DISK) {
            return Err(HandlerError::retryable("DISK_DEAD", "no such device: /dev/sda"));
        }
    }
    job.fact("state", &"installed")?;
    job.fact("image", &"debian-12.7")?;
    Ok("installed")
}

async fn check(job: JobContext) -> Result<&'static str, HandlerError> {
    pause(600).await?;
    job.fact("checked", &jiff::Timestamp::now())?;
    Ok("healthy")
}
