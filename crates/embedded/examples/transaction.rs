//! A job that is enqueued in the transaction of an order. The guide of the Rust SDK, docs/guides/rust.md, shows parts of
//! it.
//!
//! `cargo run -p windlass-embedded --example transaction -- postgres://localhost/shop`

use client::{HandlerError, Job, JobContext, enqueue_in};
use embedded::Embedded;
use serde::{Deserialize, Serialize};
use tokio_postgres::{Client, NoTls};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

#[derive(Serialize, Deserialize)]
pub struct Receipt {
    pub order: i64,
}

impl Job for Receipt {
    const QUEUE: &str = "mail";
    const KIND: &str = "receipt";
    type Output = String;
}

pub async fn place_order(database: &mut Client, order: i64) -> Result<Uuid, Box<dyn std::error::Error>> {
    let mut transaction = database.transaction().await?;
    transaction.execute("insert into orders (id) values ($1)", &[&order]).await?;
    let job = enqueue_in(&mut transaction, &Receipt { order }.request()?).await?;
    transaction.commit().await?;
    Ok(job)
}

async fn receipt(receipt: Receipt, _job: JobContext) -> Result<String, HandlerError> {
    Ok(format!("receipt for order {}", receipt.order))
}

/// Places an order, and returns the result of its job. The engine and the shop share the database.
pub async fn run(engine: &Embedded, url: &str) -> Result<String, Box<dyn std::error::Error>> {
    let (mut database, connection) = tokio_postgres::connect(url, NoTls).await?;
    let stop = CancellationToken::new();
    let worker = engine.worker().job(receipt).build()?;
    let shop = async {
        database.batch_execute("create table if not exists orders (id bigint primary key)").await?;
        let job = place_order(&mut database, 17).await?;
        let ended = engine.wait(domain::JobId::new(job), std::time::Duration::from_secs(60)).await?;
        Ok::<_, Box<dyn std::error::Error>>(ended.and_then(|ended| ended.result).unwrap_or_default())
    };
    let (_, sent) = tokio::join!(worker.run(stop.clone()), async {
        let sent = tokio::select! {
            sent = shop => sent,
            ended = connection => Err(format!("the connection ended: {ended:?}").into()),
        };
        stop.cancel();
        sent
    });
    sent
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).ok_or("usage: transaction postgres://…")?;
    let engine = Embedded::open(&url).await?;
    println!("{}", run(&engine, &url).await?);
    engine.stop().await;
    Ok(())
}
