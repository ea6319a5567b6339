//! A durable workflow with typed jobs, on an engine in the same process. The guide of the Rust SDK, docs/guides/rust.md,
//! shows parts of it.
//!
//! `cargo run --example order -- sqlite:orders.db`

use std::time::Duration;

use client::{HandlerError, Job, JobContext, StepRetry, Workflow};
use embedded::Embedded;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

#[derive(Serialize, Deserialize)]
pub struct Order {
    pub id: u64,
    pub pages: Vec<String>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Receipt {
    pub payment: String,
    pub words: usize,
}

impl Job for Order {
    const QUEUE: &str = "orders";
    const KIND: &str = "order";
    type Output = Receipt;
}

#[derive(Serialize, Deserialize)]
pub struct Page {
    pub text: String,
}

impl Job for Page {
    const QUEUE: &str = "pages";
    const KIND: &str = "page";
    type Output = usize;
}

pub async fn order(order: Order, workflow: Workflow) -> Result<Receipt, HandlerError> {
    let payment: String = workflow
        .step("charge", || async { charge(order.id).await })
        .input(&order.id)
        .retry(StepRetry::attempts(3))
        .undo(|payment: String| async move { refund(&payment).await })
        .await?;
    let words = workflow.gather(order.pages.into_iter().map(|text| Page { text })).await?;
    let delivered: Option<String> = workflow
        .wait_for_event("delivered")
        .matching("order", &order.id)
        .timeout(WEEK)
        .await?
        .map(|Delivered { at }| at);
    if delivered.is_none() {
        return Err(HandlerError::permanent("lost", "The parcel was lost.")); // runs refund
    }
    workflow.sleep(Duration::from_millis(10)).await?;
    Ok(Receipt { payment, words: words.iter().sum() })
}

const WEEK: Duration = Duration::from_secs(7 * 24 * 3_600);

#[derive(Deserialize)]
struct Delivered {
    at: String,
}

pub async fn page(page: Page, _job: JobContext) -> Result<usize, HandlerError> {
    Ok(page.text.split_whitespace().count())
}

async fn charge(order: u64) -> Result<String, HandlerError> {
    Ok(format!("payment for {order}"))
}

async fn refund(payment: &str) -> Result<(), HandlerError> {
    println!("refunded {payment}");
    Ok(())
}

pub async fn run(url: &str) -> Result<Receipt, Box<dyn std::error::Error>> {
    let engine = Embedded::open(url).await?;
    let job = engine.push(&Order { id: 7, pages: vec!["Dear reader".into(), "The end".into()] }).await?.id;
    engine.send_event(job, "delivered", &serde_json::json!({"order": 7, "at": "noon"})).await?;

    let worker = engine.worker().job(page).workflow_job(order).build()?;
    let stop = CancellationToken::new();
    let (_, ended) = tokio::join!(worker.run(stop.clone()), async {
        let ended = engine.wait(job, Duration::from_secs(60)).await;
        stop.cancel();
        ended
    });
    let ended = ended?.ok_or("the job exists")?;
    engine.stop().await;
    Ok(serde_json::from_str(&ended.result.ok_or("the order has no receipt")?)?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "sqlite:orders.db".into());
    println!("{:?}", run(&url).await?);
    Ok(())
}
