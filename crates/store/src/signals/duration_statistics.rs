//! Statistics per kind of work and affinity, from a sample of ended jobs. Estimates are computed from them.
//!
//! A settle writes nothing for this. The node that committed the end of a job adds the job's id to a bounded reservoir
//! sample in memory. Every second a task reads the rows of the sampled jobs and folds them into the table `figures`. A
//! crash loses at most one second of samples.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use domain::limits::{
    ARRIVAL_LANES_PER_FOLD, DURATION_SAMPLES, KIN_AFFINITIES, REPORTS_PER_JOB, TRACKED_ETAS, TRACKED_LANES,
    TRACKED_WORKERS,
};
use domain::signals::eta::arrivals::{ArrivalRate, TOGETHER_MS};
use domain::signals::eta::calibration::Answer;
use domain::signals::eta::line::LINE_SLOTS;
use domain::signals::eta::progress::Progress;
use domain::signals::eta::statistics::{EndedWork, Statistics, WorkHistory};
use domain::{Affinity, Epoch, JobId, Label, Name, TenantId, Time, WorkerId};

use crate::cache::stale_while_revalidate::{Generation, Lookup};
use crate::db::tx::{Column, Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::queue::lanes::LaneCache;
use crate::signals::estimator;
use crate::store::Store;

/// A kind of work with an affinity.
pub type StatisticsKey = (Name, Affinity);

/// Samples the jobs whose end this node committed since the last fold. Tracks what this node knows of unfinished jobs:
/// the answers that it gave and the progress that was reported to it.
#[derive(Clone, Default)]
pub(crate) struct DurationSampler {
    inner: Arc<Mutex<SamplerState>>,
}

#[derive(Default)]
struct SamplerState {
    sampled: Vec<JobId>,
    /// Ended jobs since the last fold, sampled or not.
    observed: u64,
    /// For each unfinished job the first answer of each horizon, and when it was given.
    answers: HashMap<JobId, Vec<(Time, Answer)>>,
    /// For each running job its reports, and the claim that they belong to.
    reports: HashMap<JobId, (Epoch, Vec<(Time, f64)>)>,
    /// Ended jobs with what was tracked for them.
    ended: HashMap<JobId, Tracked>,
    /// By worker: the jobs that it runs at the same time, and whether that is stored.
    concurrency: HashMap<WorkerId, (i64, bool)>,
    /// By lane: when the job was due that ended last.
    last_due: HashMap<i64, Time>,
    /// By worker: ends of jobs after which no later start is known, oldest first.
    ends: HashMap<WorkerId, Vec<Time>>,
}

/// What this node tracked for a job.
#[derive(Clone, Debug, Default)]
struct Tracked {
    answers: Vec<(Time, Answer)>,
    reports: Vec<(Time, f64)>,
}

/// What a fold takes from the sampler.
struct Drained {
    sampled: Vec<JobId>,
    /// Ended jobs per sampled job.
    scale: f64,
    tracked: HashMap<JobId, Tracked>,
    concurrency: Vec<(WorkerId, i64)>,
}

impl DurationSampler {
    /// Observes ended jobs.
    pub(crate) fn observe_ended(&self, ended: &[JobId]) {
        if ended.is_empty() {
            return;
        }
        let mut state = self.inner.lock().expect("lock poisoned");
        for job in ended {
            let (answers, reports) = (state.answers.remove(job), state.reports.remove(job));
            if (answers.is_some() || reports.is_some()) && state.ended.len() < DURATION_SAMPLES {
                let reports = reports.map(|(_, reports)| reports).unwrap_or_default();
                state.ended.insert(*job, Tracked { answers: answers.unwrap_or_default(), reports });
            }
            state.observed += 1;
            if state.sampled.len() < DURATION_SAMPLES {
                state.sampled.push(*job);
                continue;
            }
            // Reservoir sampling (Algorithm R): every observed job has the same probability of being in the sample. The
            // random number is the low half of the id, which is random in a UUIDv7.
            let index = job.uuid().as_u64_pair().1 % state.observed;
            if let Some(slot) = state.sampled.get_mut(index as usize) {
                *slot = *job;
            }
        }
    }

    /// Tracks an answer, to compare it with the job's end. Repeats within a horizon are the same promise.
    fn track_answer(&self, job: JobId, now: Time, answer: Answer) {
        let mut state = self.inner.lock().expect("lock poisoned");
        if state.answers.len() >= TRACKED_ETAS {
            // Answers for jobs that end on other nodes are never removed. Dropping all of them makes space for new
            // ones.
            state.answers.clear();
        }
        let answers = state.answers.entry(job).or_default();
        if answers.iter().all(|(_, given)| given.horizon != answer.horizon) {
            answers.push((now, answer));
        }
    }

    /// Tracks a report of progress, to learn how progress maps to time.
    pub(crate) fn track_progress(&self, job: JobId, epoch: Epoch, now: Time, progress: f64) {
        let mut state = self.inner.lock().expect("lock poisoned");
        if state.reports.len() >= TRACKED_ETAS {
            state.reports.clear();
        }
        let reports = state.reports.entry(job).or_insert((epoch, Vec::new()));
        if reports.0 != epoch {
            *reports = (epoch, Vec::new());
        }
        if reports.1.len() < REPORTS_PER_JOB && reports.1.last().is_none_or(|(_, last)| *last < progress) {
            reports.1.push((now, progress));
        }
    }

    /// Observes a claim: a worker asks for as many jobs as it has room for.
    pub(crate) fn observe_claim(&self, worker: WorkerId, max: usize) {
        let max = i64::try_from(max).unwrap_or(i64::MAX);
        let mut state = self.inner.lock().expect("lock poisoned");
        if state.concurrency.len() >= TRACKED_WORKERS {
            state.concurrency.clear();
        }
        let seen = state.concurrency.entry(worker).or_insert((0, true));
        if seen.0 < max {
            *seen = (max, false);
        }
    }

    /// True if an ended job did not arrive together with the job of its lane that ended before it.
    fn begins_burst(&self, lane: i64, run_at: Time) -> bool {
        let mut state = self.inner.lock().expect("lock poisoned");
        if state.last_due.len() >= TRACKED_LANES {
            state.last_due.clear();
        }
        let last = state.last_due.insert(lane, run_at);
        last.is_none_or(|last| run_at.ms_since(last).abs() > TOGETHER_MS)
    }

    /// The time from the end of the worker's previous job to the start of this one, if the job was due at that end. The
    /// jobs of a worker are observed in the order of their ends. A worker with several slots has several ends: a start
    /// belongs to the last one before it.
    fn turnaround_s(&self, worker: WorkerId, run_at: Time, started_at: Time, finished_at: Time) -> Option<f64> {
        let mut state = self.inner.lock().expect("lock poisoned");
        if state.ends.len() >= TRACKED_WORKERS {
            state.ends.clear();
        }
        let ends = state.ends.entry(worker).or_default();
        let place = ends.iter().rposition(|end| *end <= started_at);
        let end = place.map(|place| ends.remove(place));
        if ends.len() >= LINE_SLOTS {
            ends.remove(0);
        }
        ends.push(finished_at);
        end.filter(|end| run_at <= *end).map(|end| seconds(end, started_at))
    }

    fn drain(&self) -> Drained {
        let mut state = self.inner.lock().expect("lock poisoned");
        let sampled = std::mem::take(&mut state.sampled);
        let scale = std::mem::take(&mut state.observed) as f64 / sampled.len().max(1) as f64;
        let mut concurrency = Vec::new();
        for (worker, (jobs, is_stored)) in &mut state.concurrency {
            if !*is_stored {
                *is_stored = true;
                concurrency.push((*worker, *jobs));
            }
        }
        Drained { sampled, scale, tracked: std::mem::take(&mut state.ended), concurrency }
    }
}

impl Store {
    /// Records an answer that was given to a client, or that was withheld. It is scored when the job ends.
    pub fn record_answer(&self, job: JobId, now: Time, answer: Answer) {
        self.duration_sampler().track_answer(job, now, answer);
    }

    /// Folds the sample of this node since the last call into the statistics. Returns the number of sampled jobs.
    pub async fn fold_duration_samples(&self) -> Result<usize, StoreError> {
        let drained = self.duration_sampler().drain();
        if drained.sampled.is_empty() && drained.tracked.is_empty() && drained.concurrency.is_empty() {
            return Ok(0);
        }
        let count = drained.sampled.len();
        let (lanes, sampler) = (self.lanes().clone(), self.duration_sampler().clone());
        self.write(FoldDurations { drained, lanes, sampler }).await?;
        self.duration_statistics_cache().invalidate_all();
        Ok(count)
    }

    /// Returns the statistics of these kinds of work, from a cache with a TTL of some seconds.
    pub async fn duration_statistics(
        &self,
        tenant: TenantId,
        keys: Vec<StatisticsKey>,
    ) -> Result<HashMap<StatisticsKey, Arc<Statistics>>, StoreError> {
        let (cached, generation) = (self.duration_statistics_cache(), self.duration_statistics_cache().generation());
        let mut found = HashMap::new();
        let (mut missing, mut stale) = (Vec::new(), Vec::new());
        for key in keys.into_iter().collect::<BTreeSet<_>>() {
            match cached.lookup(&(tenant, key.clone())) {
                Lookup::Fresh(statistics) => drop(found.insert(key, statistics)),
                Lookup::Stale(statistics) => {
                    stale.push(key.clone());
                    found.insert(key, statistics);
                }
                Lookup::Missing => missing.push(key),
            }
        }
        if !stale.is_empty() {
            let store = self.clone();
            cached.refresh(async move { store.read_duration_statistics(tenant, stale, generation).await.map(drop) });
        }
        if !missing.is_empty() {
            found.extend(self.read_duration_statistics(tenant, missing, generation).await?);
        }
        Ok(found)
    }

    async fn read_duration_statistics(
        &self,
        tenant: TenantId,
        keys: Vec<StatisticsKey>,
        generation: Generation,
    ) -> Result<Vec<(StatisticsKey, Arc<Statistics>)>, StoreError> {
        let read = self.read(ReadDurationStatistics { tenant, keys }).await?;
        let insert = |(key, statistics): (StatisticsKey, Statistics)| {
            let cached = self.duration_statistics_cache().insert(generation, (tenant, key.clone()), statistics);
            (key, cached)
        };
        Ok(read.into_iter().map(insert).collect())
    }
}

struct FoldDurations {
    drained: Drained,
    lanes: LaneCache,
    sampler: DurationSampler,
}

const ENDED: Sql = Sql::new(
    &["select id, tenant, lane, state, worker, run_at, started_at, begun_at, finished_at, attempt, max_attempts
       from ended where id = $1"],
    "select id, tenant, lane, state, worker, run_at, started_at, begun_at, finished_at, attempt, max_attempts
     from ended where id = any($1::uuid[])",
);
const LOAD: Sql = Sql::new(
    &["select run, load, wait, answers, within_p50, within_p90, estimator from figures
       where tenant = $1 and kind = $2 and affinity = $3"],
    "select run, load, wait, answers, within_p50, within_p90, estimator from figures
     where tenant = $1 and kind = $2 and affinity = $3 for update",
);
const UPSERT: Sql = Sql::both(&["insert into figures
         (tenant, kind, affinity, run, load, wait, answers, within_p50, within_p90, updated_at, estimator)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
     on conflict (tenant, kind, affinity) do update set run = excluded.run, load = excluded.load, wait = excluded.wait,
         answers = excluded.answers, within_p50 = excluded.within_p50, within_p90 = excluded.within_p90,
         updated_at = excluded.updated_at, estimator = excluded.estimator"]);
const RATE: Sql = Sql::both(&["select per_s, at from arrival_rates where lane = $1"]);
const UPSERT_RATE: Sql = Sql::both(&["insert into arrival_rates (lane, tenant, per_s, at) values ($1, $2, $3, $4)
     on conflict (lane) do update set per_s = excluded.per_s, at = excluded.at"]);
const SET_CONCURRENCY: Sql = Sql::both(&["update workers set concurrency = $2 where id = $1"]);

/// A job of the sample.
struct DurationRow {
    id: JobId,
    tenant: TenantId,
    lane: i64,
    is_canceled: bool,
    worker: Option<WorkerId>,
    run_at: Time,
    started_at: Option<Time>,
    begun_at: Option<Time>,
    finished_at: Time,
    attempt: i64,
    max_attempts: i64,
}

impl DurationRow {
    fn read(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            id: row.job("id")?,
            tenant: TenantId(row.int("tenant")?),
            lane: row.int("lane")?,
            is_canceled: row.text("state")? == "canceled",
            worker: row.opt_uuid("worker")?.map(WorkerId::new),
            run_at: row.time("run_at")?,
            started_at: row.opt_time("started_at")?,
            begun_at: row.opt_time("begun_at")?,
            finished_at: row.time("finished_at")?,
            attempt: row.int("attempt")?,
            max_attempts: row.int("max_attempts")?,
        })
    }

    /// `None` for a job that never started.
    fn work(&self, tracked: Option<&Tracked>, sampler: &DurationSampler) -> Option<EndedWork> {
        let begins_burst = sampler.begins_burst(self.lane, self.run_at);
        let started_at = self.started_at?;
        let begun_at = self.begun_at.unwrap_or(started_at);
        let report = |(at, share): &(Time, f64)| Progress { share: *share, elapsed_s: seconds(begun_at, *at) };
        let answer = |(at, answer): &(Time, Answer)| (*answer, seconds(*at, self.finished_at));
        Some(EndedWork {
            run_s: seconds(begun_at, self.finished_at),
            load_s: self.begun_at.map(|begun_at| seconds(started_at, begun_at)),
            wait_s: seconds(self.run_at, started_at),
            turnaround_s: self
                .worker
                .and_then(|worker| sampler.turnaround_s(worker, self.run_at, started_at, self.finished_at)),
            begins_burst,
            attempt: u32::try_from(self.attempt).unwrap_or(1),
            was_last_permitted: self.attempt >= self.max_attempts,
            was_canceled: self.is_canceled,
            progress: tracked.map(|tracked| tracked.reports.iter().map(report).collect()).unwrap_or_default(),
            answers: tracked.map(|tracked| tracked.answers.iter().map(answer).collect()).unwrap_or_default(),
        })
    }
}

fn seconds(from: Time, to: Time) -> f64 {
    to.ms_since(from).max(0) as f64 / 1_000.0
}

impl Operation for FoldDurations {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let Drained { sampled, scale, tracked, concurrency } = &self.drained;
        for (worker, jobs) in concurrency {
            tx.execute(&SET_CONCURRENCY, &[Param::from(*worker), Param::Int(*jobs)]).await?;
        }
        let mut ids: Vec<JobId> = sampled.iter().chain(tracked.keys()).copied().collect();
        ids.sort_unstable();
        ids.dedup();
        let rows = tx.query_each(&ENDED, &[Column::jobs(ids)], &[]).await?;
        let mut rows: Vec<DurationRow> = rows.iter().map(DurationRow::read).collect::<Result<_, _>>()?;
        // A change of the durations is recognized by the newest samples.
        rows.sort_by_key(|row| (row.finished_at, row.id));
        let mut by_key: BTreeMap<(TenantId, String, String), Vec<EndedWork>> = BTreeMap::new();
        let mut arrivals: BTreeMap<i64, (TenantId, Vec<f64>)> = BTreeMap::new();
        for row in &rows {
            let (_, ages_s) = arrivals.entry(row.lane).or_insert((row.tenant, Vec::new()));
            ages_s.push(seconds(row.run_at, tx.now()));
            let Some(work) = row.work(tracked.get(&row.id), &self.sampler) else { continue };
            let lane = self.lanes.one(tx, row.lane).await?;
            let affinity = lane.affinity.as_ref().map_or("", Label::as_str).to_owned();
            by_key.entry((row.tenant, lane.kind.to_string(), affinity)).or_default().push(work);
        }
        for ((tenant, kind, affinity), ended) in &by_key {
            fold(tx, *tenant, kind, affinity, ended).await?;
        }
        let mut arrivals: Vec<_> = arrivals.into_iter().collect();
        arrivals.sort_by_key(|(lane, (_, ages_s))| (std::cmp::Reverse(ages_s.len()), *lane));
        for (lane, (tenant, ages_s)) in arrivals.iter().take(ARRIVAL_LANES_PER_FOLD) {
            count_arrivals(tx, *lane, *tenant, ages_s, *scale).await?;
        }
        Ok(())
    }
}

async fn fold(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    kind: &str,
    affinity: &str,
    ended: &[EndedWork],
) -> Result<(), StoreError> {
    // Two nodes may fold the first samples of a kind at once. Without a row to lock, both would start from an empty
    // sketch, so an advisory lock serializes them.
    tx.lock(&[&format!("figures {} {kind} {affinity}", tenant.0)]).await?;
    let key = [Param::Int(tenant.0), Param::Text(kind), Param::Text(affinity)];
    let stored = tx.query_opt(&LOAD, &key).await?;
    let mut history = stored.as_ref().map(estimator::read).transpose()?.unwrap_or_default();
    ended.iter().for_each(|work| history.observe(work));
    let columns = estimator::write(&history);
    let [tenant, kind, affinity] = key;
    let params = [
        tenant,
        kind,
        affinity,
        Param::Json(&columns.run),
        Param::Json(&columns.load),
        Param::Json(&columns.wait),
        Param::Real(columns.answers),
        Param::Real(columns.within_p50),
        Param::Real(columns.within_p90),
        Param::Time(tx.now()),
        Param::Json(&columns.estimator),
    ];
    tx.execute(&UPSERT, &params).await.map(|_| ())
}

/// Adds ended jobs to the arrival rate of their lane. Each stands for `scale` jobs.
async fn count_arrivals(
    tx: &mut Tx<'_>,
    lane: i64,
    tenant: TenantId,
    ages_s: &[f64],
    scale: f64,
) -> Result<(), StoreError> {
    tx.lock(&[&format!("arrivals {lane}")]).await?;
    let now = tx.now();
    let mut rate = match tx.query_opt(&RATE, &[Param::Int(lane)]).await? {
        Some(row) => arrival_rate(&row)?,
        None => ArrivalRate::default(),
    };
    ages_s.iter().for_each(|age_s| rate.observe(seconds_of(now), *age_s, scale));
    let params = [Param::Int(lane), Param::Int(tenant.0), Param::Real(rate.per_s), Param::Time(now)];
    tx.execute(&UPSERT_RATE, &params).await.map(|_| ())
}

/// Reads the columns `per_s` and `at`.
pub(super) fn arrival_rate(row: &Row) -> Result<ArrivalRate, StoreError> {
    Ok(ArrivalRate { per_s: row.opt_real("per_s")?.unwrap_or(0.0), at_s: seconds_of(row.time("at")?) })
}

pub(super) fn seconds_of(time: Time) -> f64 {
    time.micros() as f64 / 1e6
}

struct ReadDurationStatistics {
    tenant: TenantId,
    keys: Vec<StatisticsKey>,
}

const STATISTICS: Sql = Sql::both(&["select run, load, wait, answers, within_p50, within_p90, estimator from figures
     where tenant = $1 and kind = $2 and affinity = $3"]);
// Jobs without an affinity are other work: what they need is loaded while they run.
const KIN: Sql = Sql::both(&["select run, load, wait, answers, within_p50, within_p90, estimator from figures
     where tenant = $1 and kind = $2 and affinity > '' and affinity <> $3 order by affinity limit $4"]);

impl Operation for ReadDurationStatistics {
    type Output = Vec<(StatisticsKey, Statistics)>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let mut all = Vec::with_capacity(self.keys.len());
        for key in &self.keys {
            let affinity = key.1.as_ref().map_or("", Label::as_str);
            let params = [Param::Int(self.tenant.0), Param::Text(key.0.as_str()), Param::Text(affinity)];
            let history = match tx.query_opt(&STATISTICS, &params).await? {
                Some(row) => estimator::read(&row)?,
                None => WorkHistory::default(),
            };
            let statistics = match key.1.is_some() && history.needs_kin() {
                true => {
                    let [tenant, kind, affinity] = params;
                    let rows = tx.query(&KIN, &[tenant, kind, affinity, Param::Int(KIN_AFFINITIES as i64)]).await?;
                    let kin = rows.iter().map(estimator::read).collect::<Result<Vec<_>, _>>()?;
                    history.statistics_with(&kin)
                }
                false => history.statistics(),
            };
            all.push((key.clone(), statistics));
        }
        Ok(all)
    }
}
