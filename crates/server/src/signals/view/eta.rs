//! The ETA of a job: builds the line before it from the queue snapshot, and simulates it with the statistics of the
//! kinds of work. `domain::signals::eta` has the rules.

use std::collections::HashMap;
use std::sync::Arc;

use domain::queue::queue_position::QueuedJob;
use domain::signals::eta::arrivals::{Arrivals, of_unfinished};
use domain::signals::eta::calibration::Answer;
use domain::signals::eta::line::{
    LINE_ENTRIES, LINE_LANES, LINE_SLOTS, Line, LineEntry, LineLane, LineRate, LineWorker, OwnJob, RUNS, RunningWork,
};
use domain::signals::eta::progress::Progress;
use domain::signals::eta::retries::RetryForecast;
use domain::signals::eta::statistics::Statistics;
use domain::{Affinity, JobId, JobState, Name, RetryPolicy, TenantId, Time};
use store::queue::enqueue::NewJob;
use store::queue::get::StoredJob;
use store::signals::duration_statistics::StatisticsKey;
use store::signals::queue_snapshot::{QueueSnapshot, RunningJob, ServingWorker};
use store::{Store, StoreError};

/// An answer, and what it is based on.
#[derive(Default)]
pub(crate) struct Estimate {
    pub(crate) answer: Option<Answer>,
    pub(crate) statistics: Option<Arc<Statistics>>,
}

/// A job whose end is estimated. It may not be enqueued yet.
pub(crate) struct EstimatedJob<'a> {
    id: JobId,
    queue: &'a Name,
    kind: &'a Name,
    affinity: &'a Affinity,
    priority: i32,
    run_at: Time,
    attempt: i32,
    max_attempts: i32,
    retry: Option<RetryPolicy>,
    /// `None` if no job like it was ever enqueued.
    lane: Option<i64>,
}

impl<'a> EstimatedJob<'a> {
    pub(crate) fn stored(job: &'a StoredJob) -> Self {
        Self {
            id: job.id,
            queue: &job.lane.queue,
            kind: &job.lane.kind,
            affinity: &job.lane.affinity,
            priority: job.lane.priority,
            run_at: job.run_at,
            attempt: job.attempt,
            max_attempts: job.max_attempts,
            retry: job.retry,
            lane: Some(store::queue::why::queued_job(job).lane),
        }
    }

    /// A job that would be enqueued now.
    pub(crate) fn new(job: &'a NewJob, id: JobId, now: Time, snapshot: &QueueSnapshot) -> Self {
        let lane = snapshot
            .lanes
            .iter()
            .find(|(_, lane)| lane.kind == job.kind && lane.affinity == job.affinity && lane.priority == job.priority);
        Self {
            id,
            queue: &job.queue,
            kind: &job.kind,
            affinity: &job.affinity,
            priority: job.priority,
            run_at: job.run_at.unwrap_or(now).max(now),
            attempt: 0,
            max_attempts: job.max_attempts,
            retry: job.extras.as_ref().and_then(|extras| extras.retry),
            lane: lane.map(|(id, _)| *id),
        }
    }

    fn key(&self) -> StatisticsKey {
        (self.kind.clone(), self.affinity.clone())
    }

    /// Seed of the simulation, derived from the job so that every reader gets the same estimate.
    fn seed(&self) -> u64 {
        self.id.uuid().as_u64_pair().1
    }

    pub(crate) fn queued(&self) -> QueuedJob {
        QueuedJob {
            id: self.id,
            priority: self.priority,
            run_at: self.run_at,
            affinity: self.affinity.clone(),
            lane: self.lane.unwrap_or(i64::MAX),
        }
    }

    fn retries(&self, own: &Statistics, policy: Option<RetryPolicy>, is_running: bool) -> RetryForecast {
        let policy = self.retry.or(policy).unwrap_or(RetryPolicy::QUEUE_DEFAULT);
        let failures = (self.attempt - i32::from(is_running)).clamp(0, 64);
        let last_wait_s = (0..failures).fold(None, |last, _| Some(policy.next_wait_s(last)));
        RetryForecast {
            attempt: u32::try_from(self.attempt + i32::from(!is_running)).unwrap_or(1),
            max_attempts: u32::try_from(self.max_attempts).unwrap_or(1),
            shares: own.attempts,
            policy,
            last_wait_s,
        }
    }
}

fn seconds(from: Time, to: Time) -> f64 {
    to.ms_since(from).max(0) as f64 / 1_000.0
}

/// Estimates a job in line. There is no answer if no worker serves it, or if a job ahead of it has no history.
pub(crate) async fn waiting(
    store: &Store,
    tenant: TenantId,
    job: &EstimatedJob<'_>,
    snapshot: &QueueSnapshot,
) -> Result<Estimate, StoreError> {
    let lanes = LineLanes::of(job, snapshot);
    let key_of = |lane: &i64| snapshot.lanes.get(lane).map(|lane| (lane.kind.clone(), lane.affinity.clone()));
    let ahead = lanes.lanes.iter().map(|(lane, _)| *lane);
    let running = snapshot.running.iter().map(|running| running.lane);
    let mut keys: Vec<StatisticsKey> = ahead.chain(running).filter_map(|lane| key_of(&lane)).collect();
    keys.push(job.key());
    keys.sort_unstable();
    keys.dedup();
    let statistics = store.duration_statistics(tenant, keys).await?;
    let own = statistics.get(&job.key()).cloned();
    let by_lane: HashMap<i64, &Statistics> =
        snapshot.lanes.keys().filter_map(|lane| Some((*lane, &**statistics.get(&key_of(lane)?)?))).collect();
    let answer = own.as_ref().filter(|_| snapshot.serving(job.kind, job.affinity).next().is_some()).and_then(|own| {
        let forecast = lanes.line(job, snapshot, own, &by_lane)?.forecast(job.seed(), RUNS);
        own.answer_waiting(forecast)
    });
    Ok(Estimate { answer, statistics: own })
}

/// The lanes whose jobs may be claimed before the job, its own first. The other number is how many of their jobs.
struct LineLanes {
    lanes: Vec<(i64, u64)>,
    total: u64,
}

impl LineLanes {
    fn of(job: &EstimatedJob<'_>, snapshot: &QueueSnapshot) -> Self {
        let position = snapshot.order.position(&job.queued(), &snapshot.loaded(job.kind, job.affinity), snapshot.now);
        let own_lane = job.lane.unwrap_or(i64::MAX);
        let ahead = |lane: i64| position.ahead_by_lane.get(&lane).copied().unwrap_or(0);
        let mut lanes = vec![(own_lane, ahead(own_lane))];
        let mut others: Vec<(i64, u64)> = snapshot
            .lanes
            .iter()
            .filter(|(lane, other)| **lane != own_lane && other.priority >= job.priority)
            .map(|(lane, _)| (*lane, ahead(*lane).max(snapshot.order.waiting(*lane).len() as u64)))
            .filter(|(lane, count)| *count > 0 || snapshot.arrivals_per_s.get(lane).is_some_and(|rate| *rate > 1e-6))
            .collect();
        // The lanes that matter most, if there are more than the simulation takes.
        others.sort_unstable_by_key(|(lane, count)| (std::cmp::Reverse(*count), *lane));
        lanes.extend(others.into_iter().take(LINE_LANES - 1));
        let total = lanes.iter().map(|(_, count)| count).sum();
        Self { lanes, total }
    }

    /// `None` if a kind of work in the line has no history.
    fn line<'a>(
        &self,
        job: &EstimatedJob<'_>,
        snapshot: &QueueSnapshot,
        own: &'a Statistics,
        by_lane: &HashMap<i64, &'a Statistics>,
    ) -> Option<Line<'a>> {
        let mut affinities: Vec<&Affinity> = Vec::new();
        let mut number_of = |affinity: &'_ Affinity| -> Option<usize> {
            affinity.as_ref()?;
            let known = affinities.iter().position(|known| *known == affinity);
            known.or_else(|| {
                // The snapshot outlives the line.
                let stored = snapshot.lanes.values().map(|lane| &lane.affinity).find(|one| *one == affinity);
                let stored = stored.or_else(|| snapshot.workers.iter().map(|w| &w.loaded).find(|one| *one == affinity));
                affinities.push(stored?);
                Some(affinities.len() - 1)
            })
        };
        let (workers, slots) = self.workers(job, snapshot);
        let scale = (slots as f64 / LINE_SLOTS as f64).max(1.0);
        let block = self.total.div_ceil(LINE_ENTRIES as u64).max(1);
        let step = ((block as f64 * scale).ceil() as u64).max(1);
        let starvation_s = snapshot.settings.starvation_s.unwrap_or(domain::limits::STARVATION_DEFAULT_S) as f64;
        let mut lanes = Vec::with_capacity(self.lanes.len());
        for (place, (lane, count)) in self.lanes.iter().enumerate() {
            let is_own = place == 0;
            let statistics = if is_own { own } else { by_lane.get(lane).copied()? };
            let (priority, affinity) = match snapshot.lanes.get(lane) {
                Some(lane) => (lane.priority, &lane.affinity),
                None => (job.priority, job.affinity),
            };
            let waiting = snapshot.order.waiting(*lane);
            let entry = |place: u64| match waiting.get(place as usize).or(waiting.last()) {
                Some((run_at, id)) => {
                    LineEntry { ready_s: -seconds(*run_at, snapshot.now), order: id.uuid().as_u128() }
                }
                None => LineEntry { ready_s: 0.0, order: u128::MAX },
            };
            let arrivals = match is_own {
                true => Arrivals::default(),
                false => {
                    let ages_s: Vec<f64> = waiting.iter().map(|(at, _)| seconds(*at, snapshot.now)).collect();
                    let ended_per_s = snapshot.arrivals_per_s.get(lane).copied().unwrap_or(0.0);
                    let jobs_per_s = ended_per_s + of_unfinished(ages_s.iter().copied());
                    let arrivals = Arrivals::of(jobs_per_s, statistics.bursts.with_unfinished(&ages_s));
                    let size = (arrivals.size / scale).max(1.0);
                    Arrivals { size, bursts_per_s: arrivals.bursts_per_s * arrivals.size / scale / size }
                }
            };
            lanes.push(LineLane {
                priority,
                affinity: number_of(affinity),
                run: statistics.run.as_ref()?,
                load: statistics.load.as_ref(),
                waiting: (0..*count).step_by(step as usize).map(entry).collect(),
                block: block as f64,
                starvation_s,
                arrivals,
            });
        }
        let mut line_workers = Vec::with_capacity(workers.len());
        for worker in workers {
            let serves = self.lanes.iter().enumerate().map(|(place, (lane, _))| match snapshot.lanes.get(lane) {
                Some(lane) => worker.serves(&lane.kind, &lane.affinity),
                None => place == 0 && worker.serves(job.kind, job.affinity),
            });
            let serves = serves.collect();
            let mut running: Vec<RunningWork<'a>> = Vec::new();
            for one in snapshot.running.iter().filter(|one| one.worker == worker.id) {
                running.push(running_work(one, by_lane.get(&one.lane).copied()?, snapshot.now)?);
            }
            // Jobs of other queues and tenants that the worker runs are not in the snapshot.
            let unknown = (worker.claims as usize).saturating_sub(running.len()).min(LINE_SLOTS);
            for _ in 0..unknown {
                running.push(own.running(0.0, false, None)?);
            }
            let concurrency = worker.concurrency.unwrap_or(1) as usize;
            line_workers.push(LineWorker { serves, loaded: number_of(&worker.loaded), concurrency, running });
        }
        let rate = snapshot.bucket.map(|bucket| LineRate { tokens: bucket.tokens, per_s: bucket.rate_per_s });
        let settings = &snapshot.settings;
        let policy = settings.kinds.get(job.kind).and_then(|kind| kind.retry).or(settings.retry);
        let turnaround_s = own.turnaround_s;
        let own = OwnJob {
            lane: 0,
            entry: LineEntry { ready_s: -seconds(job.run_at, snapshot.now), order: job.id.uuid().as_u128() },
            retries: job.retries(own, policy, false),
            wait: own.wait.as_ref(),
        };
        let limit = settings.concurrency.map(|limit| limit as usize);
        Some(Line { lanes, workers: line_workers, limit, rate, turnaround_s, own })
    }

    /// The workers that serve a lane of the line, those that serve the job first, and the number of their slots.
    fn workers<'s>(&self, job: &EstimatedJob<'_>, snapshot: &'s QueueSnapshot) -> (Vec<&'s ServingWorker>, usize) {
        let serves_own = |worker: &ServingWorker| worker.serves(job.kind, job.affinity);
        let serves_any = |worker: &ServingWorker| {
            let lanes = self.lanes.iter().filter_map(|(lane, _)| snapshot.lanes.get(lane));
            lanes.into_iter().any(|lane| worker.serves(&lane.kind, &lane.affinity))
        };
        let mut workers: Vec<&ServingWorker> = snapshot.workers.iter().filter(|worker| serves_own(worker)).collect();
        workers.extend(snapshot.workers.iter().filter(|worker| !serves_own(worker) && serves_any(worker)));
        let slots = workers.iter().map(|worker| worker.concurrency.unwrap_or(1).max(worker.claims).max(1)).sum::<u64>();
        workers.truncate(LINE_SLOTS);
        (workers, slots as usize)
    }
}

/// A running job as the simulation sees it. `None` if its kind has no history.
fn running_work<'a>(job: &RunningJob, statistics: &'a Statistics, now: Time) -> Option<RunningWork<'a>> {
    let begun_at = job.begun_at.filter(|_| !job.is_loading).unwrap_or(job.started_at);
    let report = |(share, at): (f64, Time)| Progress { share, elapsed_s: seconds(begun_at, at) };
    let is_loading = job.is_loading && statistics.load.is_some();
    statistics.running(seconds(begun_at, now), is_loading, job.progress.map(report))
}

/// Estimates a running job, or one scheduled for later.
pub(crate) async fn alone(store: &Store, tenant: TenantId, job: &StoredJob, now: Time) -> Result<Estimate, StoreError> {
    let estimated = EstimatedJob::stored(job);
    let own = store.duration_statistics(tenant, vec![estimated.key()]).await?.remove(&estimated.key());
    let Some(statistics) = own.as_deref() else { return Ok(Estimate::default()) };
    let retries = estimated.retries(statistics, None, job.started_at.is_some());
    let answer = match (job.state, job.started_at) {
        (JobState::Scheduled, _) => statistics.answer_scheduled(seconds(now, job.run_at), &retries, estimated.seed()),
        (JobState::Loading | JobState::Working, Some(started_at)) => {
            // A job without an affinity begins to work when it starts. For the others the snapshot has the time.
            let begun_at = match job.lane.affinity {
                None => started_at,
                Some(_) => {
                    let (snapshot, _) = store.queue_snapshot(tenant, estimated.queue).await?;
                    let running = snapshot.running.iter().find(|one| one.id == job.id && one.started_at == started_at);
                    running.and_then(|running| running.begun_at).unwrap_or(started_at)
                }
            };
            let is_loading = job.state == JobState::Loading;
            let since = if is_loading { started_at } else { begun_at };
            let report = |share: f64| Progress { share, elapsed_s: seconds(begun_at, job.updated_at) };
            let progress = job.progress.filter(|_| !is_loading).map(report);
            statistics.answer_running(seconds(since, now), is_loading, progress, &retries, estimated.seed())
        }
        _ => None,
    };
    Ok(Estimate { answer, statistics: own })
}

/// Estimates a job that is not enqueued yet.
pub(crate) async fn not_enqueued(
    store: &Store,
    tenant: TenantId,
    job: &EstimatedJob<'_>,
    snapshot: &QueueSnapshot,
) -> Result<Estimate, StoreError> {
    if job.run_at <= snapshot.now {
        return waiting(store, tenant, job, snapshot).await;
    }
    let own = store.duration_statistics(tenant, vec![job.key()]).await?.remove(&job.key());
    let answer = own.as_deref().and_then(|own| {
        let settings = &snapshot.settings;
        let policy = settings.kinds.get(job.kind).and_then(|kind| kind.retry).or(settings.retry);
        let retries = job.retries(own, policy, false);
        own.answer_scheduled(seconds(snapshot.now, job.run_at), &retries, job.seed())
    });
    Ok(Estimate { answer, statistics: own })
}
