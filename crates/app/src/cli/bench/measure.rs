//! The measurements that run on every transport.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use domain::{Name, TenantId};
use store::benchmark_data::backlog::{Crowd, Filling};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::drive::{HttpServer, KIND, Producer, QUEUE, Transport, worker};
use super::figure::Figure;
use super::served::TIMEOUT;
use super::{Metric, served};
use crate::cli::serve::raise_open_files;

pub(super) async fn measure<W: Transport>(
    transport: &W,
    metric: Metric,
    scaled: impl Fn(u64) -> u64,
) -> anyhow::Result<Figure> {
    let name = metric.name();
    let jobs = scaled(100_000);
    let fill = async |filling: Filling, jobs: u64| {
        transport.store().fill(Name::new(QUEUE)?, Name::new(KIND)?, filling, jobs).await.map_err(anyhow::Error::from)
    };
    match metric {
        Metric::Enqueue16 => enqueue(transport, &name, 16, scaled(20_000)).await,
        Metric::Enqueue64 => enqueue(transport, &name, 64, scaled(50_000)).await,
        Metric::Bulk => bulk(transport, &name, jobs).await,
        Metric::Latency => latency(transport, &name, scaled(500), 1).await,
        Metric::LatencyWorkers1k => latency(transport, &name, scaled(500), scaled(1_000)).await,
        Metric::DrainOf1M => {
            fill(Filling::Waiting, scaled(1_000_000)).await?;
            drain(transport, &name, jobs).await
        }
        Metric::DrainQueues10k | Metric::DrainTenants10k => {
            let crowd = if metric == Metric::DrainQueues10k { Crowd::Queues } else { Crowd::Tenants };
            transport.store().fill_beside(crowd, scaled(10_000)).await?;
            put(transport, jobs).await?;
            drain(transport, &name, jobs).await
        }
        Metric::Drain100k | Metric::DrainRetained1M | Metric::DrainRetained10M | Metric::DrainParked1M => {
            match metric {
                Metric::DrainRetained1M => fill(Filling::Ended, scaled(1_000_000)).await?,
                Metric::DrainRetained10M => fill(Filling::Ended, scaled(10_000_000)).await?,
                Metric::DrainParked1M => fill(Filling::Parked, scaled(1_000_000)).await?,
                _ => {}
            }
            put(transport, jobs).await?;
            drain(transport, &name, jobs).await
        }
        Metric::Verify10M => verify(transport, &name, scaled(10_000_000)).await,
        Metric::Signals1M | Metric::Streams5k | Metric::Subjects100k => bail!("{name} needs a server"),
        Metric::DrainNodes2 | Metric::DrainNodes3 => bail!("{name} needs several nodes"),
        Metric::Pages => bail!("pages are measured one by one"),
        Metric::Eta => bail!("{name} needs no database"),
    }
}

/// Runs a measurement over HTTP, including those that only HTTP supports.
pub(super) async fn measure_served(
    transport: &HttpServer,
    metric: Metric,
    scaled: impl Fn(u64) -> u64,
) -> anyhow::Result<Figure> {
    let name = metric.name();
    match metric {
        Metric::Signals1M => served::signals(transport, &name, scaled(1_000_000), scaled(20_000)).await,
        Metric::Streams5k => served::streams(transport, &name, scaled(5_000), scaled(500)).await,
        Metric::Subjects100k => served::subjects(transport, &name, scaled(100_000), scaled(500)).await,
        _ => measure(transport, metric, scaled).await,
    }
}

/// A payload of 200 bytes of JSON.
pub(super) fn payload(number: u64, at_us: u64) -> String {
    let start = format!(r#"{{"n":{number},"t":{at_us},"pad":""#);
    let pad = 200usize.saturating_sub(start.len() + 2);
    format!("{start}{}\"}}", "x".repeat(pad))
}

pub(super) fn figure<W: Transport>(transport: &W, metric: &str, n: u64, elapsed: Duration) -> Figure {
    let secs = elapsed.as_secs_f64();
    let database = if transport.store().is_postgres() { "postgres" } else { "sqlite" };
    Figure {
        peer: "windlass".into(),
        cfg: format!("{} {database}", W::CFG),
        metric: metric.into(),
        n,
        secs,
        value: n as f64 / secs,
        unit: "jobs/s".into(),
        p99: None,
        rss_kb: rss_kb(),
        wal_bytes: None,
        least: None,
        most: None,
    }
}

async fn enqueue<W: Transport>(transport: &W, metric: &str, producers: u64, n: u64) -> anyhow::Result<Figure> {
    transport.one(payload(0, 0)).await.context("the first enqueue")?;
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    let started = Instant::now();
    for _ in 0..producers {
        let (mut producer, next) = (transport.producer().await?, next.clone());
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= n {
                    return Ok::<_, anyhow::Error>(());
                }
                producer.put(payload(number, 0)).await?;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(figure(transport, metric, n, started.elapsed()))
}

async fn verify<W: Transport>(transport: &W, metric: &str, jobs: u64) -> anyhow::Result<Figure> {
    transport.store().fill_pages(jobs).await?;
    let started = Instant::now();
    let verdict = transport.store().verify().await?;
    if !verdict.findings.is_empty() {
        bail!("the generated data violates invariants: {:?}", verdict.findings);
    }
    let figure = figure(transport, metric, jobs, started.elapsed());
    Ok(Figure { value: figure.secs, unit: "s".into(), ..figure })
}

async fn bulk<W: Transport>(transport: &W, metric: &str, n: u64) -> anyhow::Result<Figure> {
    transport.one(payload(0, 0)).await.context("the first enqueue")?;
    let started = Instant::now();
    put(transport, n).await?;
    Ok(figure(transport, metric, n, started.elapsed()))
}

/// Enqueues jobs in batches of 1,000.
async fn put<W: Transport>(transport: &W, n: u64) -> anyhow::Result<()> {
    let mut number = 0;
    while number < n {
        let until = (number + 1_000).min(n);
        transport.many((number..until).map(|number| payload(number, 0)).collect()).await?;
        number = until;
    }
    Ok(())
}

async fn drain<W: Transport>(transport: &W, metric: &str, n: u64) -> anyhow::Result<Figure> {
    drained(std::slice::from_ref(transport), metric, n).await
}

/// Like `drain`, with one worker per node.
pub(super) async fn drain_through<W: Transport>(nodes: &[W], metric: &str, n: u64) -> anyhow::Result<Figure> {
    put(nodes.first().context("there is a node")?, n).await?;
    drained(nodes, metric, n).await
}

/// Measures from the start of the first handler until the servers have confirmed `n` settled jobs, which are then
/// durable.
async fn drained<W: Transport>(nodes: &[W], metric: &str, n: u64) -> anyhow::Result<Figure> {
    let transport = nodes.first().context("there is a node")?;
    let log_before = transport.store().log_position().await?;
    // A claim requests a quarter of this. SQLite serves small claims from its page cache; for a remote server large
    // claims save round trips.
    let ahead = if transport.store().is_postgres() { 8_000 } else { 4_000 };
    let first_start = Arc::new(OnceLock::new());
    let stop = CancellationToken::new();
    let (mut workers, mut running) = (Vec::new(), JoinSet::new());
    for node in nodes {
        let first = first_start.clone();
        let on_start = move |_: &client::JobContext| {
            let _ = first.set(Instant::now());
        };
        let worker = Arc::new(worker(node, 1_000, ahead, on_start)?);
        workers.push(worker.clone());
        let stop = stop.clone();
        running.spawn(async move { worker.run(stop).await });
    }
    while workers.iter().map(|worker| worker.statistics().done).sum::<u64>() < n {
        if !running.is_empty() && running.try_join_next().is_some() {
            bail!("the worker stopped before its work was done");
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let ended = Instant::now();
    let log_after = transport.store().log_position().await?;
    stop.cancel();
    for done in running.join_all().await {
        done?;
    }
    let first_start = first_start.get().copied().context("no handler ran")?;
    let wal_bytes = log_after.zip(log_before).map(|(after, before)| (after - before) as f64 / n as f64);
    Ok(Figure { wal_bytes, ..figure(transport, metric, n, ended.duration_since(first_start)) })
}

async fn latency<W: Transport>(transport: &W, metric: &str, n: u64, workers: u64) -> anyhow::Result<Figure> {
    raise_open_files();
    let epoch = Instant::now();
    let (seen, mut starts) = mpsc::channel::<u64>(1_000);
    let stop = CancellationToken::new();
    let on_start = move |job: &client::JobContext| {
        let now_us = epoch.elapsed().as_micros() as u64;
        let sent: Option<u64> = job.payload::<BenchPayload>().ok().map(|sent| sent.t);
        let _ = seen.try_send(now_us.saturating_sub(sent.unwrap_or(now_us)));
    };
    let mut running = JoinSet::new();
    for _ in 0..workers {
        let (worker, stop) = (worker(transport, 16, 16, on_start.clone())?, stop.clone());
        running.spawn(async move { worker.run(stop).await });
    }
    while (transport.store().list_workers(TenantId::DEFAULT, None, workers as usize).await?.len() as u64) < workers {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // The first jobs run with cold caches and are not counted.
    let warm_up = 25;
    let started = Instant::now();
    let mut waits_ms = Vec::new();
    let mut ticks = tokio::time::interval(Duration::from_millis(20));
    for number in 0..n + warm_up {
        ticks.tick().await;
        transport.one(payload(number, epoch.elapsed().as_micros() as u64)).await?;
        while let Ok(wait_us) = starts.try_recv() {
            waits_ms.push(wait_us as f64 / 1_000.0);
        }
    }
    while (waits_ms.len() as u64) < n + warm_up {
        let wait = tokio::time::timeout(TIMEOUT, starts.recv()).await;
        waits_ms.push(wait.ok().flatten().context("a job never started")? as f64 / 1_000.0);
    }
    stop.cancel();
    for done in running.join_all().await {
        done?;
    }
    let figure = figure(transport, metric, n, started.elapsed());
    let (value, p99) = quantiles(waits_ms.split_off(warm_up as usize)).context("nothing was measured")?;
    Ok(Figure { value, unit: "ms".into(), p99: Some(p99), ..figure })
}

/// The median and the 99th percentile.
pub(super) fn quantiles(mut values: Vec<f64>) -> Option<(f64, f64)> {
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    let at = |quantile: f64| values[(last as f64 * quantile) as usize];
    Some((at(0.5), at(0.99)))
}

#[derive(serde::Deserialize)]
struct BenchPayload {
    t: u64,
}

/// Peak resident memory of this process in KiB; 0 if unknown.
fn rss_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|text| text.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}
