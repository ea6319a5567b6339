//! What only a server does: signals read at a steady rate, streams held open, facts that call for jobs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use client::{Client, HandlerError, JobContext, JobFilter, Worker};
use domain::Name;
use serde_json::json;
use store::maintenance::fill::Filling;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use wire::{ProcessRequest, SubjectRequest};

use super::drive::{Http, KIND, QUEUE, Way, request};
use super::figure::Figure;
use super::measure::{figure, payload, quantiles};
use super::raw::{Connection, Stream};
use crate::cli::serve::raise_open_files;

/// Who reads signals, each over a connection of its own.
const READERS: u64 = 20;
/// Reads a second, of all readers together.
const READS_PER_S: u64 = 1_000;
/// Changes a second while streams or subjects are watched.
const CHANGES_PER_S: u64 = 50;
/// How long one answer may take before the measurement is given up.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);
const PROCESSES: u64 = 10;
const CALLERS: u64 = 32;

/// Reads of signals among so many waiting jobs. The time of an answer that an earlier one held up counts from when its turn
/// was, so that a slow one is seen in all that it delays.
pub(super) async fn signals(way: &Http, metric: &str, waiting: u64, reads: u64) -> anyhow::Result<Figure> {
    way.store().fill(Name::new(QUEUE)?, Name::new(KIND)?, Filling::Waiting, waiting).await?;
    let ids = Arc::new(some_jobs(way.client(), 5_000).await?);
    let mut readers = JoinSet::new();
    let started = Instant::now();
    for reader in 0..READERS {
        let (mut connection, ids) = (Connection::open(way.host()).await?, ids.clone());
        readers.spawn(async move {
            let mut times_ms = Vec::new();
            // One after the other, not all at once.
            let first = tokio::time::Instant::now() + Duration::from_micros(1_000_000 * reader / READS_PER_S);
            let mut turns = tokio::time::interval_at(first, Duration::from_micros(1_000_000 * READERS / READS_PER_S));
            let mut free = first;
            for number in 0..reads.div_ceil(READERS) {
                let turn = turns.tick().await;
                // The timer is late by up to a millisecond, which is not the server's.
                let asked = if free > turn { turn } else { tokio::time::Instant::now() };
                // A step without a common factor with their number takes them in no order.
                let id = ids[((number * READERS + reader) * 7_919 % ids.len() as u64) as usize];
                connection.get(&format!("/api/v1/jobs/{id}/signal")).await?;
                times_ms.push(asked.elapsed().as_secs_f64() * 1_000.0);
                free = tokio::time::Instant::now();
            }
            Ok::<_, anyhow::Error>(times_ms)
        });
    }
    let mut times_ms = Vec::new();
    while let Some(read) = readers.join_next().await {
        times_ms.extend(read??);
    }
    in_ms(way, metric, times_ms, started)
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

/// So many open streams, each of a job of its own, some of which are called off: the time until the stream says so.
pub(super) async fn streams(way: &Http, metric: &str, open: u64, told: u64) -> anyhow::Result<Figure> {
    raise_open_files();
    let mut ids = Vec::new();
    while (ids.len() as u64) < open {
        let some = (open - ids.len() as u64).min(1_000);
        let jobs = (0..some).map(|number| request(payload(number, 0))).collect::<anyhow::Result<Vec<_>>>()?;
        ids.extend(way.client().enqueue_batch(jobs).await?);
    }
    let mut streams = Vec::new();
    for id in &ids {
        let mut stream = Stream::open(way.host(), &format!("/api/v1/jobs/{id}/stream")).await?;
        tokio::time::timeout(PATIENCE, stream.until("event: signal")).await.context("a stream says nothing")??;
        streams.push((*id, stream));
    }
    let started = Instant::now();
    let mut changes = tokio::time::interval(Duration::from_micros(1_000_000 / CHANGES_PER_S));
    let mut watched = JoinSet::new();
    let mut kept = streams.split_off(told.min(open) as usize);
    for (id, mut stream) in streams {
        changes.tick().await;
        let client = way.client().clone();
        watched.spawn(async move {
            let asked = Instant::now();
            let told = async {
                client.cancel(id).await?;
                stream.until(r#""kind":"canceled""#).await
            };
            tokio::time::timeout(PATIENCE, told).await.context("a stream missed the end of its job")??;
            Ok::<_, anyhow::Error>(asked.elapsed().as_secs_f64() * 1_000.0)
        });
    }
    let mut times_ms = Vec::new();
    while let Some(told) = watched.join_next().await {
        times_ms.push(told??);
    }
    for (_, stream) in &mut kept {
        stream.assert_open()?;
    }
    let figure = in_ms(way, metric, times_ms, started)?;
    Ok(Figure { n: open, ..figure })
}

/// So many subjects under ten processes: the time from a fact's change until the handler of the job it calls for starts.
pub(super) async fn subjects(way: &Http, metric: &str, subjects: u64, changed: u64) -> anyhow::Result<Figure> {
    for process in 0..PROCESSES {
        let wanted = json!({
            "selector": { "all": [{ "fact": "state", "equals": format!("due-{process}") }] },
            "queue": QUEUE, "kind": KIND, "every_s": 3_600,
        });
        let process_request: ProcessRequest = serde_json::from_value(wanted)?;
        way.client().set_process(&format!("process-{process}"), &process_request).await?;
    }
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let client = way.client().clone();
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
    let worker = Worker::builder(way.client().clone()).queue(QUEUE).concurrency(16).handle(KIND, handler).build()?;
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
        let asked = Instant::now();
        set(way.client(), number, &format!("due-{}", change % PROCESSES)).await?;
        let (subject, began) =
            tokio::time::timeout(PATIENCE, starts.recv()).await.ok().flatten().context("a subject's job never came")?;
        anyhow::ensure!(subject.as_deref() == Some(&name(number)), "another subject's job came");
        times_ms.push(began.duration_since(asked).as_secs_f64() * 1_000.0);
    }
    stop.cancel();
    for done in running.join_all().await {
        done?;
    }
    let figure = in_ms(way, metric, times_ms, started)?;
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

fn in_ms(way: &Http, metric: &str, times_ms: Vec<f64>, started: Instant) -> anyhow::Result<Figure> {
    let figure = figure(way, metric, times_ms.len() as u64, started.elapsed());
    let (value, p99) = quantiles(times_ms).context("nothing was measured")?;
    Ok(Figure { value, unit: "ms".into(), p99: Some(p99), ..figure })
}
