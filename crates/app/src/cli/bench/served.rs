//! Measurements of features that only a server has: signal reads, event streams, and processes on subjects.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use client::{Client, HandlerError, JobContext, JobFilter, Worker};
use domain::Name;
use serde_json::json;
use store::benchmark_data::backlog::Filling;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use wire::{ProcessRequest, SubjectRequest};

use super::drive::{HttpServer, KIND, QUEUE, Transport, request};
use super::figure::Figure;
use super::measure::{figure, payload, quantiles};
use super::raw::{EventStream, RawConnection};
use crate::cli::serve::raise_open_files;

/// Concurrent readers of signals, each with its own connection.
const READERS: u64 = 20;
/// Reads per second of all readers together.
const READS_PER_S: u64 = 1_000;
/// Changes per second while streams or subjects are measured.
const CHANGES_PER_S: u64 = 50;
/// Maximum time for one response before the measurement fails.
pub(super) const TIMEOUT: Duration = Duration::from_secs(120);
const PROCESSES: u64 = 10;
const CALLERS: u64 = 32;

/// Reads signals among `waiting` jobs at a fixed rate. A read that an earlier slow response delayed counts from its
/// scheduled time, so that a slow response shows in every read that it delays (no coordinated omission).
pub(super) async fn signals(transport: &HttpServer, metric: &str, waiting: u64, reads: u64) -> anyhow::Result<Figure> {
    transport.store().fill(Name::new(QUEUE)?, Name::new(KIND)?, Filling::Waiting, waiting).await?;
    let ids = Arc::new(some_jobs(transport.client(), 5_000).await?);
    let mut readers = JoinSet::new();
    let started = Instant::now();
    for reader in 0..READERS {
        let (mut connection, ids) = (RawConnection::open(transport.host()).await?, ids.clone());
        readers.spawn(async move {
            let mut times_ms = Vec::new();
            // Spread the readers over the interval.
            let first = tokio::time::Instant::now() + Duration::from_micros(1_000_000 * reader / READS_PER_S);
            let mut turns = tokio::time::interval_at(first, Duration::from_micros(1_000_000 * READERS / READS_PER_S));
            let mut free = first;
            for number in 0..reads.div_ceil(READERS) {
                let turn = turns.tick().await;
                // The timer fires up to a millisecond late; do not count that against the server.
                let sent_at = if free > turn { turn } else { tokio::time::Instant::now() };
                // A prime step visits the jobs in a scattered order.
                let id = ids[((number * READERS + reader) * 7_919 % ids.len() as u64) as usize];
                connection.get(&format!("/api/v1/jobs/{id}/signal")).await?;
                times_ms.push(sent_at.elapsed().as_secs_f64() * 1_000.0);
                free = tokio::time::Instant::now();
            }
            Ok::<_, anyhow::Error>(times_ms)
        });
    }
    let mut times_ms = Vec::new();
    while let Some(read) = readers.join_next().await {
        times_ms.extend(read??);
    }
    in_ms(transport, metric, times_ms, started)
}

async fn some_jobs(client: &Client, wanted: usize) -> anyhow::Result<Vec<Uuid>> {
    let mut filter = JobFilter { limit: Some(500), ..JobFilter::default() };
    let mut ids = Vec::new();
    loop {
        let page = client.jobs(&filter).await?;
        ids.extend(page.items.into_iter().map(|job| job.id));
        filter.cursor = page.next_cursor;
        if ids.len() >= wanted || filter.cursor.is_none() {
            return Ok(ids);
        }
    }
}

/// Opens `open` streams, each of its own job, cancels `canceled` of the jobs, and measures the time until the stream
/// reports it.
pub(super) async fn streams(transport: &HttpServer, metric: &str, open: u64, canceled: u64) -> anyhow::Result<Figure> {
    raise_open_files();
    let mut ids = Vec::new();
    while (ids.len() as u64) < open {
        let some = (open - ids.len() as u64).min(1_000);
        let jobs = (0..some).map(|number| request(payload(number, 0))).collect::<anyhow::Result<Vec<_>>>()?;
        ids.extend(transport.client().enqueue_batch(jobs).await?);
    }
    let mut streams = Vec::new();
    for id in &ids {
        let mut stream = EventStream::open(transport.host(), &format!("/api/v1/jobs/{id}/stream")).await?;
        tokio::time::timeout(TIMEOUT, stream.until("event: signal")).await.context("a stream sent no signal")??;
        streams.push((*id, stream));
    }
    let started = Instant::now();
    let mut changes = tokio::time::interval(Duration::from_micros(1_000_000 / CHANGES_PER_S));
    let mut watched = JoinSet::new();
    let mut untouched = streams.split_off(canceled.min(open) as usize);
    for (id, mut stream) in streams {
        changes.tick().await;
        let client = transport.client().clone();
        watched.spawn(async move {
            let sent_at = Instant::now();
            let reported = async {
                client.cancel(id).await?;
                stream.until(r#""kind":"canceled""#).await
            };
            tokio::time::timeout(TIMEOUT, reported).await.context("a stream did not report the end of its job")??;
            Ok::<_, anyhow::Error>(sent_at.elapsed().as_secs_f64() * 1_000.0)
        });
    }
    let mut times_ms = Vec::new();
    while let Some(measured) = watched.join_next().await {
        times_ms.push(measured??);
    }
    for (_, stream) in &mut untouched {
        stream.assert_open()?;
    }
    let figure = in_ms(transport, metric, times_ms, started)?;
    Ok(Figure { n: open, ..figure })
}

/// With `subjects` subjects and ten processes, measures the time from a change of a fact to the start of the job's
/// handler.
pub(super) async fn subjects(
    transport: &HttpServer,
    metric: &str,
    subjects: u64,
    changed: u64,
) -> anyhow::Result<Figure> {
    for process in 0..PROCESSES {
        let wanted = json!({
            "selector": { "all": [{ "fact": "state", "equals": format!("due-{process}") }] },
            "queue": QUEUE, "kind": KIND, "every_s": 3_600,
        });
        let process_request: ProcessRequest = serde_json::from_value(wanted)?;
        transport.client().set_process(&format!("process-{process}"), &process_request).await?;
    }
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let client = transport.client().clone();
        callers.spawn(async move {
            for number in (caller..subjects).step_by(CALLERS as usize) {
                set(&client, number, "idle").await?;
            }
            Ok::<_, anyhow::Error>(())
        });
    }
    while let Some(done) = callers.join_next().await {
        done??;
    }
    let (seen, mut starts) = mpsc::channel(1_000);
    let handler = move |job: JobContext| {
        let seen = seen.clone();
        async move {
            let _ = seen.send((job.job().subject.clone(), Instant::now())).await;
            Ok::<(), HandlerError>(())
        }
    };
    let worker =
        Worker::builder(transport.client().clone()).queue(QUEUE).concurrency(16).handle(KIND, handler).build()?;
    let stop = CancellationToken::new();
    let mut running = JoinSet::new();
    {
        let stop = stop.clone();
        running.spawn(async move { worker.run(stop).await });
    }
    let mut turns = tokio::time::interval(Duration::from_micros(1_000_000 / CHANGES_PER_S));
    let mut times_ms = Vec::new();
    let started = Instant::now();
    for change in 0..changed {
        turns.tick().await;
        let number = change * (subjects / changed).max(1);
        let sent_at = Instant::now();
        set(transport.client(), number, &format!("due-{}", change % PROCESSES)).await?;
        let (subject, began) = tokio::time::timeout(TIMEOUT, starts.recv())
            .await
            .ok()
            .flatten()
            .context("no job was created for a subject")?;
        anyhow::ensure!(subject.as_deref() == Some(&name(number)), "a job was created for another subject");
        times_ms.push(began.duration_since(sent_at).as_secs_f64() * 1_000.0);
    }
    stop.cancel();
    for done in running.join_all().await {
        done?;
    }
    let figure = in_ms(transport, metric, times_ms, started)?;
    Ok(Figure { n: subjects, ..figure })
}

fn name(number: u64) -> String {
    format!("machine-{number}")
}

async fn set(client: &Client, number: u64, state: &str) -> anyhow::Result<()> {
    let facts = BTreeMap::from([("state".to_owned(), serde_json::value::to_raw_value(state)?)]);
    client.set_subject(&name(number), &SubjectRequest { kind: None, facts }).await?;
    Ok(())
}

fn in_ms(transport: &HttpServer, metric: &str, times_ms: Vec<f64>, started: Instant) -> anyhow::Result<Figure> {
    let figure = figure(transport, metric, times_ms.len() as u64, started.elapsed());
    let (value, p99) = quantiles(times_ms).context("nothing was measured")?;
    Ok(Figure { value, unit: "ms".into(), p99: Some(p99), ..figure })
}
