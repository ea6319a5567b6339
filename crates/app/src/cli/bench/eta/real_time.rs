//! A run in real time, beside the runs in virtual time: a real server and a worker with handlers that sleep.

use std::sync::Arc;
use std::time::Duration;

use client::{Client, HandlerError, JobContext, Worker};
use domain::signals::eta::random::RandomSource;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use wire::{JobRequest, RawValue};

use super::super::drive::{HttpServer, QUEUE, Transport};
use super::super::{BenchArgs, ScratchDatabase};

/// Median seconds and deviation of the logarithm of each kind.
const KINDS: [(&str, f64, f64); 2] = [("short", 0.3, 0.5), ("long", 0.8, 0.6)];
/// The kinds arrive equally often and use 70 % of the slots.
const JOBS_PER_S: f64 = 4.3;
const SLOTS: usize = 4;
/// Jobs are enqueued for this time. The run takes a little longer.
const ENQUEUE_S: f64 = 45.0;
/// Each job is asked for its ETA when it is enqueued, and then at this interval.
const ASK_EVERY: Duration = Duration::from_millis(300);
/// Share of the answers that is not measured: the history is learned.
const WARM_UP: f64 = 0.15;
/// Limits of the shares within p90 and p50. One short run is less certain than many virtual ones.
pub(super) const P90: (f64, f64) = (0.80, 0.97);
pub(super) const P50: (f64, f64) = (0.35, 0.65);

/// An ETA that a client read, and what happened.
struct Answered {
    at_s: f64,
    took_s: f64,
    p50_s: f64,
    p90_s: f64,
}

pub(super) struct Shares {
    pub(super) answers: usize,
    pub(super) p50: f64,
    pub(super) p90: f64,
}

impl Shares {
    pub(super) fn hold(&self) -> bool {
        (P90.0..=P90.1).contains(&self.p90) && (P50.0..=P50.1).contains(&self.p50)
    }
}

pub(super) async fn measure(args: &BenchArgs) -> anyhow::Result<Shares> {
    let scratch = ScratchDatabase::open(args.database.as_deref()).await?;
    let transport = HttpServer::start(&scratch.store).await?;
    let mut builder = transport.worker()?.queue(QUEUE).concurrency(SLOTS).prefetch(0);
    for (kind, ..) in KINDS {
        builder = builder.handle(kind, sleep);
    }
    let worker: Worker<Client> = builder.build()?;
    let stop = CancellationToken::new();
    let mut running = JoinSet::new();
    running.spawn({
        let stop = stop.clone();
        async move { worker.run(stop).await }
    });
    let client = Arc::new(transport.client().clone());
    let mut random = RandomSource::new(1);
    let mut readers = JoinSet::new();
    let began = tokio::time::Instant::now();
    let mut at_s = 0.0;

    while at_s < ENQUEUE_S {
        at_s += random.exponential(1.0 / JOBS_PER_S);
        tokio::time::sleep_until(began + Duration::from_secs_f64(at_s)).await;

        let (kind, median_s, deviation) = KINDS[random.below(KINDS.len())];
        let run_s = median_s * (deviation * random.normal()).exp();
        readers.spawn(follow(client.clone(), kind, run_s, at_s));
    }
    let mut answered = Vec::new();
    while let Some(read) = readers.join_next().await {
        answered.extend(read??);
    }
    stop.cancel();
    for done in running.join_all().await {
        done?;
    }
    drop(transport);
    scratch.wipe().await?;
    answered.sort_by(|one, other| one.at_s.total_cmp(&other.at_s));
    let measured = answered.split_off((answered.len() as f64 * WARM_UP) as usize);
    let share = |holds: fn(&Answered) -> bool| {
        measured.iter().filter(|one| holds(one)).count() as f64 / measured.len().max(1) as f64
    };
    Ok(Shares {
        answers: measured.len(),
        p50: share(|one| one.took_s <= one.p50_s),
        p90: share(|one| one.took_s <= one.p90_s),
    })
}

async fn sleep(job: JobContext) -> Result<(), HandlerError> {
    tokio::time::sleep(Duration::from_secs_f64(job.payload::<f64>()?)).await;
    Ok(())
}

/// Enqueues a job and reads its ETA until it has ended.
async fn follow(client: Arc<Client>, kind: &str, run_s: f64, at_s: f64) -> anyhow::Result<Vec<Answered>> {
    let payload = Some(RawValue::from_string(run_s.to_string())?);
    let request = JobRequest { queue: QUEUE.into(), kind: kind.into(), payload, ..JobRequest::default() };
    let id = client.enqueue(&request).await?.id;
    let mut etas = Vec::new();
    loop {
        let asked_at = jiff::Timestamp::now();
        let Some(signal) = client.signal(id).await? else { break };
        if matches!(signal.kind.as_str(), "succeeded" | "failed" | "canceled") {
            break;
        }
        etas.extend(signal.eta_seconds.map(|eta| (asked_at, eta)));
        tokio::time::sleep(ASK_EVERY).await;
    }
    let Some(finished_at) = client.job(id).await?.finished_at else { return Ok(Vec::new()) };
    let answered = |(asked_at, eta): (jiff::Timestamp, wire::EtaRange)| Answered {
        at_s,
        took_s: finished_at.duration_since(asked_at).as_secs_f64(),
        p50_s: eta.p50,
        p90_s: eta.p90,
    };
    // An answer that was read while the job ended says nothing.
    Ok(etas.into_iter().map(answered).filter(|one| one.took_s > 0.0).collect())
}
