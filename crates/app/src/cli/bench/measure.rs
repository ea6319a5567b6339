//! The measurements themselves, the same for every way to the engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use domain::{Name, TenantId};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Metric;
use super::drive::{QUEUE, Way, work};
use crate::cli::output::Output;

/// One line of the result.
#[derive(Debug, Serialize)]
pub(super) struct Figure {
    peer: &'static str,
    cfg: String,
    metric: &'static str,
    n: u64,
    secs: f64,
    pub(super) value: f64,
    unit: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    p99: Option<f64>,
    rss_kb: u64,
}

impl Figure {
    pub(super) fn print(&self, output: Output) -> anyhow::Result<()> {
        match output {
            Output::Json => println!("{}", serde_json::to_string(self)?),
            Output::Table => {
                let p99 = self.p99.map(|p99| format!(", p99 {p99:.2}")).unwrap_or_default();
                println!(
                    "{:<18} {:<10} {:>12.2} {}{p99}   (n={})",
                    self.cfg, self.metric, self.value, self.unit, self.n
                );
            }
        }
        Ok(())
    }
}

pub(super) async fn measure<W: Way>(way: &W, metric: Metric, scaled: impl Fn(u64) -> u64) -> anyhow::Result<Figure> {
    match metric {
        Metric::Enqueue16 => enqueue(way, "enqueue16", 16, scaled(20_000)).await,
        Metric::Enqueue64 => enqueue(way, "enqueue64", 64, scaled(50_000)).await,
        Metric::Bulk => bulk(way, scaled(100_000)).await,
        Metric::Drain100k => drain(way, scaled(100_000)).await,
        Metric::Latency => latency(way, scaled(500)).await,
    }
}

/// 200 bytes of JSON.
fn payload(number: u64, at_us: u64) -> String {
    let start = format!(r#"{{"n":{number},"t":{at_us},"pad":""#);
    let pad = 200usize.saturating_sub(start.len() + 2);
    format!("{start}{}\"}}", "x".repeat(pad))
}

fn figure<W: Way>(way: &W, metric: &'static str, n: u64, elapsed: Duration) -> Figure {
    let secs = elapsed.as_secs_f64();
    let database = if way.store().is_postgres() { "postgres" } else { "sqlite" };
    let cfg = format!("{} {database}", W::CFG);
    Figure {
        peer: "windlass",
        cfg,
        metric,
        n,
        secs,
        value: n as f64 / secs,
        unit: "jobs/s",
        p99: None,
        rss_kb: rss_kb(),
    }
}

async fn enqueue<W: Way>(way: &W, metric: &'static str, producers: u64, n: u64) -> anyhow::Result<Figure> {
    way.one(payload(0, 0)).await.context("the first enqueue")?;
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    let started = Instant::now();
    for _ in 0..producers {
        let (way, next) = (way.clone(), next.clone());
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= n {
                    return Ok::<_, anyhow::Error>(());
                }
                way.one(payload(number, 0)).await?;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(figure(way, metric, n, started.elapsed()))
}

async fn bulk<W: Way>(way: &W, n: u64) -> anyhow::Result<Figure> {
    way.one(payload(0, 0)).await.context("the first enqueue")?;
    let started = Instant::now();
    fill(way, n).await?;
    Ok(figure(way, "bulk", n, started.elapsed()))
}

async fn fill<W: Way>(way: &W, n: u64) -> anyhow::Result<()> {
    let mut number = 0;
    while number < n {
        let until = (number + 1_000).min(n);
        way.many((number..until).map(|number| payload(number, 0)).collect()).await?;
        number = until;
    }
    Ok(())
}

async fn drain<W: Way>(way: &W, n: u64) -> anyhow::Result<Figure> {
    fill(way, n).await?;
    let stop = CancellationToken::new();
    let begun = Arc::new(std::sync::OnceLock::new());
    let first = begun.clone();
    let worker = {
        let (way, stop) = (way.clone(), stop.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            work(
                &way,
                512,
                1_000,
                move |_| {
                    let _ = first.set(Instant::now());
                },
                stop,
            )
            .await
        });
        tasks
    };
    let ended = all_succeeded(way, n).await?;
    stop.cancel();
    for done in worker.join_all().await {
        done?;
    }
    let begun = begun.get().copied().context("no handler ran")?;
    Ok(figure(way, "drain100k", n, ended.duration_since(begun)))
}

/// Waits until the kept counters say that every job has succeeded: what they count is durable.
async fn all_succeeded<W: Way>(way: &W, n: u64) -> anyhow::Result<Instant> {
    let queue = Name::new(QUEUE)?;
    loop {
        let seen = way.store().queue(TenantId::DEFAULT, &queue).await?;
        if seen.is_some_and(|queue| queue.counts.succeeded as u64 >= n) {
            return Ok(Instant::now());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn latency<W: Way>(way: &W, n: u64) -> anyhow::Result<Figure> {
    let epoch = Instant::now();
    let (seen, mut starts) = mpsc::channel::<u64>(1_000);
    let stop = CancellationToken::new();
    let on_start = move |job: &client::JobContext| {
        let now_us = epoch.elapsed().as_micros() as u64;
        let sent: Option<u64> = job.payload::<Sent>().ok().map(|sent| sent.t);
        let _ = seen.try_send(now_us.saturating_sub(sent.unwrap_or(now_us)));
    };
    let mut worker = JoinSet::new();
    {
        let (way, stop) = (way.clone(), stop.clone());
        worker.spawn(async move { work(&way, 16, 16, on_start, stop).await });
    }
    // The first few find the worker registering and the caches cold.
    let warm_up = 25;
    let started = Instant::now();
    let mut waits_ms = Vec::new();
    let mut ticks = tokio::time::interval(Duration::from_millis(20));
    for number in 0..n + warm_up {
        ticks.tick().await;
        way.one(payload(number, epoch.elapsed().as_micros() as u64)).await?;
        while let Ok(wait_us) = starts.try_recv() {
            waits_ms.push(wait_us as f64 / 1_000.0);
        }
    }
    while (waits_ms.len() as u64) < n + warm_up {
        let wait = tokio::time::timeout(Duration::from_secs(10), starts.recv()).await;
        waits_ms.push(wait.ok().flatten().context("a job never started")? as f64 / 1_000.0);
    }
    stop.cancel();
    for done in worker.join_all().await {
        done?;
    }
    let mut waits = waits_ms.split_off(warm_up as usize);
    waits.sort_by(f64::total_cmp);
    let at = |quantile: f64| waits[((waits.len() - 1) as f64 * quantile) as usize];
    let figure = figure(way, "latency", n, started.elapsed());
    Ok(Figure { value: at(0.5), unit: "ms", p99: Some(at(0.99)), ..figure })
}

#[derive(serde::Deserialize)]
struct Sent {
    t: u64,
}

/// The most memory this process has had, in KiB; 0 where that cannot be told.
fn rss_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|text| text.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}
