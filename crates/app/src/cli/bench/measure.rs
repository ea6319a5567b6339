//! The measurements themselves, the same for every way to the engine.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use domain::{Name, TenantId};
use store::maintenance::fill::{Crowd, Filling};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::drive::{Http, KIND, Producer, QUEUE, Way, worker};
use super::figure::Figure;
use super::served::PATIENCE;
use super::{Metric, served};
use crate::cli::serve::raise_open_files;

pub(super) async fn measure<W: Way>(way: &W, metric: Metric, scaled: impl Fn(u64) -> u64) -> anyhow::Result<Figure> {
    let name = metric.name();
    let jobs = scaled(100_000);
    let fill = async |filling: Filling, jobs: u64| {
        way.store().fill(Name::new(QUEUE)?, Name::new(KIND)?, filling, jobs).await.map_err(anyhow::Error::from)
    };
    match metric {
        Metric::Enqueue16 => enqueue(way, &name, 16, scaled(20_000)).await,
        Metric::Enqueue64 => enqueue(way, &name, 64, scaled(50_000)).await,
        Metric::Bulk => bulk(way, &name, jobs).await,
        Metric::Latency => latency(way, &name, scaled(500), 1).await,
        Metric::LatencyWorkers1k => latency(way, &name, scaled(500), scaled(1_000)).await,
        Metric::DrainOf1M => {
            fill(Filling::Waiting, scaled(1_000_000)).await?;
            drain(way, &name, jobs).await
        }
        Metric::DrainQueues10k | Metric::DrainTenants10k => {
            let crowd = if metric == Metric::DrainQueues10k { Crowd::Queues } else { Crowd::Tenants };
            way.store().fill_beside(crowd, scaled(10_000)).await?;
            put(way, jobs).await?;
            drain(way, &name, jobs).await
        }
        Metric::Drain100k | Metric::DrainRetained1M | Metric::DrainRetained10M | Metric::DrainParked1M => {
            match metric {
                Metric::DrainRetained1M => fill(Filling::Ended, scaled(1_000_000)).await?,
                Metric::DrainRetained10M => fill(Filling::Ended, scaled(10_000_000)).await?,
                Metric::DrainParked1M => fill(Filling::Parked, scaled(1_000_000)).await?,
                _ => {}
            }
            put(way, jobs).await?;
            drain(way, &name, jobs).await
        }
        Metric::Verify10M => verify(way, &name, scaled(10_000_000)).await,
        Metric::Signals1M | Metric::Streams5k | Metric::Subjects100k => bail!("{name} needs a server"),
        Metric::DrainNodes2 | Metric::DrainNodes3 => bail!("{name} needs several nodes"),
        Metric::Pages => bail!("pages are measured one by one"),
    }
}

/// What is measured over HTTP alone.
pub(super) async fn measure_served(way: &Http, metric: Metric, scaled: impl Fn(u64) -> u64) -> anyhow::Result<Figure> {
    let name = metric.name();
    match metric {
        Metric::Signals1M => served::signals(way, &name, scaled(1_000_000), scaled(20_000)).await,
        Metric::Streams5k => served::streams(way, &name, scaled(5_000), scaled(500)).await,
        Metric::Subjects100k => served::subjects(way, &name, scaled(100_000), scaled(500)).await,
        _ => measure(way, metric, scaled).await,
    }
}

/// 200 bytes of JSON.
pub(super) fn payload(number: u64, at_us: u64) -> String {
    let start = format!(r#"{{"n":{number},"t":{at_us},"pad":""#);
    let pad = 200usize.saturating_sub(start.len() + 2);
    format!("{start}{}\"}}", "x".repeat(pad))
}

pub(super) fn figure<W: Way>(way: &W, metric: &str, n: u64, elapsed: Duration) -> Figure {
    let secs = elapsed.as_secs_f64();
    let database = if way.store().is_postgres() { "postgres" } else { "sqlite" };
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

async fn enqueue<W: Way>(way: &W, metric: &str, producers: u64, n: u64) -> anyhow::Result<Figure> {
    way.one(payload(0, 0)).await.context("the first enqueue")?;
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    let started = Instant::now();
    for _ in 0..producers {
        let (mut producer, next) = (way.producer().await?, next.clone());
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
    Ok(figure(way, metric, n, started.elapsed()))
}

async fn verify<W: Way>(way: &W, metric: &str, jobs: u64) -> anyhow::Result<Figure> {
    way.store().fill_pages(jobs).await?;
    let started = Instant::now();
    let verdict = way.store().verify().await?;
    if !verdict.findings.is_empty() {
        bail!("what was filled in does not hold: {:?}", verdict.findings);
    }
    let figure = figure(way, metric, jobs, started.elapsed());
    Ok(Figure { value: figure.secs, unit: "s".into(), ..figure })
}

async fn bulk<W: Way>(way: &W, metric: &str, n: u64) -> anyhow::Result<Figure> {
    way.one(payload(0, 0)).await.context("the first enqueue")?;
    let started = Instant::now();
    put(way, n).await?;
    Ok(figure(way, metric, n, started.elapsed()))
}

/// A thousand jobs at a time.
async fn put<W: Way>(way: &W, n: u64) -> anyhow::Result<()> {
    let mut number = 0;
    while number < n {
        let until = (number + 1_000).min(n);
        way.many((number..until).map(|number| payload(number, 0)).collect()).await?;
        number = until;
    }
    Ok(())
}

async fn drain<W: Way>(way: &W, metric: &str, n: u64) -> anyhow::Result<Figure> {
    drained(std::slice::from_ref(way), metric, n).await
}

/// The same with a worker at each node.
pub(super) async fn drain_through<W: Way>(nodes: &[W], metric: &str, n: u64) -> anyhow::Result<Figure> {
    put(nodes.first().context("there is a node")?, n).await?;
    drained(nodes, metric, n).await
}

/// From the first handler's start until the servers have confirmed that as many have ended: that is durable.
async fn drained<W: Way>(nodes: &[W], metric: &str, n: u64) -> anyhow::Result<Figure> {
    let way = nodes.first().context("there is a node")?;
    let log_before = way.store().log_position().await?;
    // A claim asks for a quarter of it. One writer has its pages at hand for small claims, a server far away likes large ones.
    let ahead = if way.store().is_postgres() { 8_000 } else { 4_000 };
    let begun = Arc::new(OnceLock::new());
    let stop = CancellationToken::new();
    let (mut workers, mut running) = (Vec::new(), JoinSet::new());
    for node in nodes {
        let first = begun.clone();
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
    let log_after = way.store().log_position().await?;
    stop.cancel();
    for done in running.join_all().await {
        done?;
    }
    let begun = begun.get().copied().context("no handler ran")?;
    let wal_bytes = log_after.zip(log_before).map(|(after, before)| (after - before) as f64 / n as f64);
    Ok(Figure { wal_bytes, ..figure(way, metric, n, ended.duration_since(begun)) })
}

async fn latency<W: Way>(way: &W, metric: &str, n: u64, workers: u64) -> anyhow::Result<Figure> {
    raise_open_files();
    let epoch = Instant::now();
    let (seen, mut starts) = mpsc::channel::<u64>(1_000);
    let stop = CancellationToken::new();
    let on_start = move |job: &client::JobContext| {
        let now_us = epoch.elapsed().as_micros() as u64;
        let sent: Option<u64> = job.payload::<Sent>().ok().map(|sent| sent.t);
        let _ = seen.try_send(now_us.saturating_sub(sent.unwrap_or(now_us)));
    };
    let mut running = JoinSet::new();
    for _ in 0..workers {
        let (worker, stop) = (worker(way, 16, 16, on_start.clone())?, stop.clone());
        running.spawn(async move { worker.run(stop).await });
    }
    while (way.store().list_workers(TenantId::DEFAULT, None, workers as usize).await?.len() as u64) < workers {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // The first few find the caches cold.
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
        let wait = tokio::time::timeout(PATIENCE, starts.recv()).await;
        waits_ms.push(wait.ok().flatten().context("a job never started")? as f64 / 1_000.0);
    }
    stop.cancel();
    for done in running.join_all().await {
        done?;
    }
    let figure = figure(way, metric, n, started.elapsed());
    let (value, p99) = quantiles(waits_ms.split_off(warm_up as usize)).context("nothing was measured")?;
    Ok(Figure { value, unit: "ms".into(), p99: Some(p99), ..figure })
}

/// The median and what 99 of 100 stay below.
pub(super) fn quantiles(mut values: Vec<f64>) -> Option<(f64, f64)> {
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    let at = |quantile: f64| values[(last as f64 * quantile) as usize];
    Some((at(0.5), at(0.99)))
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
