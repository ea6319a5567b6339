//! A worker, and an engine in the same process. The guide of the Rust SDK, docs/guides/rust.md, shows parts of it.
//!
//! `cargo run --example mail -- http://127.0.0.1:7717` works on a server; without an address, on its own engine.

#![expect(clippy::disallowed_methods, reason = "a program of a user reads its environment")]

use client::{Client, HandlerError, JobContext, Worker};
use embedded::{Embedded, JobBuilder};
use tokio_util::sync::CancellationToken;

#[derive(serde::Deserialize)]
struct Welcome {
    user: u64,
}

async fn welcome(job: JobContext) -> Result<String, HandlerError> {
    let Welcome { user } = job.payload()?;
    job.progress(0.5);
    Ok(format!("sent to {user}"))
}

async fn work(url: &str, shutdown: CancellationToken) -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::builder(url).token(std::env::var("WINDLASS_TOKEN")?).build()?;
    let worker = Worker::builder(client).queue("mail").concurrency(16).handle("welcome", welcome).build()?;
    worker.run(shutdown).await?; // a tokio_util::sync::CancellationToken

    Ok(())
}

async fn embed(shutdown: CancellationToken) -> Result<(), Box<dyn std::error::Error>> {
    let engine = Embedded::open("sqlite:app.db").await?;
    engine.enqueue(JobBuilder::new("mail", "welcome")?.payload(&serde_json::json!({"user": 7}))?).await?;
    let worker = engine.worker().queue("mail").handle("welcome", welcome).build()?;
    worker.run(shutdown).await?;
    engine.stop().await;

    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let shutdown = CancellationToken::new();
    match std::env::args().nth(1) {
        Some(url) => work(&url, shutdown).await,
        None => embed(shutdown).await,
    }
}
