//! awa as a peer: the same work and the same lines as the other peers of the harness print.
//!
//!     peer-awa setup | enqueue16 N | bulk N | drain N [partial] | latency N RATE
//!
//! The database is DATABASE_URL. `drain` takes CLAIMERS (2) and BATCH (512) from the environment.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use awa::{Client, InsertOpts, JobArgs, JobResult, QueueConfig};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const QUEUE: &str = "bench";

/// 200 bytes as JSON.
#[derive(Clone, Serialize, Deserialize, JobArgs)]
struct Noop {
    id: u64,
    t: u64,
    to: String,
    pad: String,
}

fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

fn noop(id: u64) -> Noop {
    Noop { id: 1_000_000_000 + id, t: now_us(), to: "someone@example.com".into(), pad: "x".repeat(122) }
}

fn options() -> InsertOpts {
    InsertOpts { queue: QUEUE.into(), ..InsertOpts::default() }
}

fn rss_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}

fn print_rate(cfg: &str, metric: &str, n: u64, secs: f64) {
    let value = n as f64 / secs;
    println!(
        "{}",
        serde_json::json!({"peer": "awa", "cfg": cfg, "metric": metric, "n": n, "secs": secs, "value": value,
            "unit": "jobs/s", "rss_kb": rss_kb()})
    );
}

async fn enqueue(pool: &PgPool, n: u64) -> Outcome<()> {
    let next = Arc::new(AtomicU64::new(0));
    let started = Instant::now();
    let mut producers = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let (pool, next) = (pool.clone(), next.clone());
        producers.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= n {
                    return Outcome::Ok(());
                }
                awa::insert_with(&pool, &noop(number), options()).await?;
            }
        });
    }
    for done in producers.join_all().await {
        done?;
    }
    print_rate("default", "enqueue16", n, started.elapsed().as_secs_f64());
    Ok(())
}

async fn bulk(pool: &PgPool, n: u64) -> Outcome<()> {
    let started = Instant::now();
    for first in (0..n).step_by(1_000) {
        let jobs = (first..(first + 1_000).min(n)).map(|number| awa::model::insert::params_with(&noop(number), options()));
        let jobs = jobs.collect::<Result<Vec<_>, _>>()?;
        awa::insert_many_copy_from_pool(pool, &jobs).await?;
    }
    print_rate("copy 1000", "bulk", n, started.elapsed().as_secs_f64());
    Ok(())
}

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Until as many have ended as awa's own counters tell.
async fn drain(pool: &PgPool, n: u64) -> Outcome<()> {
    let started = Arc::new(std::sync::OnceLock::new());
    let (first, ran) = (started.clone(), Arc::new(AtomicU64::new(0)));
    let count = ran.clone();
    let (claimers, batch) = (from_environment("CLAIMERS", 2), from_environment("BATCH", 512));
    let config = QueueConfig {
        max_workers: 1_024,
        poll_interval: Duration::from_millis(10),
        claimers: claimers as u16,
        claim_batch_size: batch as usize,
        ..QueueConfig::default()
    };
    let client = Client::builder(pool.clone()).queue(QUEUE, config).register::<Noop, _, _>(move |_, _| {
        let _ = first.set(Instant::now());
        count.fetch_add(1, Ordering::Relaxed);
        async { Ok(JobResult::Completed) }
    });
    let client = client.build()?;
    client.start().await?;
    while ran.load(Ordering::Relaxed) < n {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // A graceful stop waits until the outcomes at hand are written.
    client.shutdown(Duration::from_secs(60)).await;
    let secs = started.get().map_or(0.0, |first: &Instant| first.elapsed().as_secs_f64());
    print_rate(&format!("claimers={claimers} batch={batch}"), "drain100k", ran.load(Ordering::Relaxed), secs);
    Ok(())
}

async fn latency(pool: &PgPool, n: u64, rate: u64) -> Outcome<()> {
    let (seen, mut waits) = tokio::sync::mpsc::channel::<f64>(10_000);
    let client = Client::builder(pool.clone()).queue(QUEUE, QueueConfig::default()).register::<Noop, _, _>(move |args, _| {
        let _ = seen.try_send((now_us() - args.t) as f64 / 1_000.0);
        async { Ok(JobResult::Completed) }
    });
    let client = client.build()?;
    client.start().await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let started = Instant::now();
    for number in 0..n {
        let due = Duration::from_micros(number * 1_000_000 / rate);
        tokio::time::sleep(due.saturating_sub(started.elapsed())).await;
        awa::insert_with(pool, &noop(number), options()).await?;
    }
    let mut all = Vec::new();
    while (all.len() as u64) < n {
        all.extend(tokio::time::timeout(Duration::from_secs(10), waits.recv()).await?);
    }
    all.sort_by(f64::total_cmp);
    let at = |quantile: f64| all[((all.len() - 1) as f64 * quantile).round() as usize];
    println!(
        "{}",
        serde_json::json!({"peer": "awa", "cfg": "default", "metric": "latency", "n": n, "value": at(0.5),
            "p99": at(0.99), "unit": "ms", "rss_kb": rss_kb()})
    );
    client.shutdown(Duration::from_secs(10)).await;
    Ok(())
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let argument = |place: usize| std::env::args().nth(place).unwrap_or_default();
    let number = |place: usize, default: u64| argument(place).parse().unwrap_or(default);
    let pool = PgPoolOptions::new().max_connections(20).connect(&std::env::var("DATABASE_URL")?).await?;
    match argument(1).as_str() {
        "setup" => Ok(awa::migrations::run(&pool).await?),
        "enqueue16" => enqueue(&pool, number(2, 16_000)).await,
        "bulk" => bulk(&pool, number(2, 100_000)).await,
        "drain" => drain(&pool, number(2, 100_000)).await,
        "latency" => latency(&pool, number(2, 500), number(3, 50)).await,
        other => Err(format!("{other:?} is not known: setup, enqueue16, bulk, drain or latency").into()),
    }
}
