//! Duration statistics per kind of work and affinity, from a sample of ended jobs. The ETA is computed from them.
//!
//! A settle writes nothing for this. The node that committed the end of a job adds the job's id to a bounded reservoir
//! sample in memory. Every second a task reads the rows of the sampled jobs and folds their durations into the table
//! `figures`. A crash loses at most one second of samples.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use domain::limits::{DURATION_SAMPLES, TRACKED_ETAS};
use domain::signals::eta::{Calibration, Durations};
use domain::signals::signal::Eta;
use domain::signals::sketch::Sketch;
use domain::{Affinity, JobId, Label, Name, TenantId, Time};

use crate::cache::stale_while_revalidate::{Generation, Lookup};
use crate::db::codec::{from_json, to_json};
use crate::db::tx::{Column, Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::lanes::LaneCache;
use crate::store::Store;

/// Duration statistics of one kind of work with one affinity.
#[derive(Clone, Debug, Default)]
pub struct DurationStatistics {
    pub run: Option<Durations>,
    pub load: Option<Durations>,
    pub wait: Option<Durations>,
    /// How often the ETAs of such jobs were right.
    pub calibration: Calibration,
    /// Weight of the samples, which decays with time.
    pub samples: f64,
}

/// A kind of work with an affinity.
pub type StatisticsKey = (Name, Affinity);

/// Samples the jobs whose end this node committed since the last fold, and tracks the ETAs that it gave for unfinished
/// jobs.
#[derive(Clone, Default)]
pub(crate) struct DurationSampler {
    inner: Arc<Mutex<SamplerState>>,
}

#[derive(Default)]
struct SamplerState {
    sampled: Vec<JobId>,
    /// Ended jobs since the last fold, sampled or not.
    observed: u64,
    /// The first ETA given for each unfinished job, and when.
    estimates: HashMap<JobId, (Time, Eta)>,
    /// Ended jobs with the ETA that was given for them.
    ended_estimates: Vec<(JobId, Time, Eta)>,
}

impl DurationSampler {
    /// Observes ended jobs.
    pub(crate) fn observe_ended(&self, ended: &[JobId]) {
        if ended.is_empty() {
            return;
        }
        let mut state = self.inner.lock().expect("lock poisoned");
        for job in ended {
            if let Some((at, eta)) = state.estimates.remove(job)
                && state.ended_estimates.len() < DURATION_SAMPLES
            {
                state.ended_estimates.push((*job, at, eta));
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

    /// Tracks the first ETA given for a job, to compare it with the job's end.
    fn track_estimate(&self, job: JobId, now: Time, eta: Eta) {
        let mut state = self.inner.lock().expect("lock poisoned");
        if state.estimates.len() >= TRACKED_ETAS {
            // Estimates of jobs that end on other nodes are never removed. Dropping all of them makes space for new
            // ones.
            state.estimates.clear();
        }
        state.estimates.entry(job).or_insert((now, eta));
    }

    /// Returns the sampled jobs and the ended estimates, and starts a new sample.
    fn drain(&self) -> (Vec<JobId>, Vec<(JobId, Time, Eta)>) {
        let mut state = self.inner.lock().expect("lock poisoned");
        state.observed = 0;
        (std::mem::take(&mut state.sampled), std::mem::take(&mut state.ended_estimates))
    }
}

impl Store {
    /// Records an ETA that was given to a client. Only these count for the ETA accuracy.
    pub fn record_estimate(&self, job: JobId, now: Time, eta: Eta) {
        self.duration_sampler().track_estimate(job, now, eta);
    }

    /// Folds the sample of this node since the last call into the statistics. Returns the number of sampled jobs.
    pub async fn fold_duration_samples(&self) -> Result<usize, StoreError> {
        let (sampled, estimates) = self.duration_sampler().drain();
        if sampled.is_empty() && estimates.is_empty() {
            return Ok(0);
        }
        let count = sampled.len();
        self.write(FoldDurations { sampled, estimates, lanes: self.lanes().clone() }).await?;
        self.duration_statistics_cache().invalidate_all();
        Ok(count)
    }

    /// Returns the statistics of these kinds of work, from a cache with a TTL of some seconds.
    pub async fn duration_statistics(
        &self,
        tenant: TenantId,
        keys: Vec<StatisticsKey>,
    ) -> Result<HashMap<StatisticsKey, Arc<DurationStatistics>>, StoreError> {
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
    ) -> Result<Vec<(StatisticsKey, Arc<DurationStatistics>)>, StoreError> {
        let read = self.read(ReadDurationStatistics { tenant, keys }).await?;
        let insert = |(key, statistics): (StatisticsKey, DurationStatistics)| {
            let cached = self.duration_statistics_cache().insert(generation, (tenant, key.clone()), statistics);
            (key, cached)
        };
        Ok(read.into_iter().map(insert).collect())
    }
}

struct FoldDurations {
    sampled: Vec<JobId>,
    estimates: Vec<(JobId, Time, Eta)>,
    lanes: LaneCache,
}

const ENDED: Sql = Sql::new(
    &["select id, tenant, lane, state, run_at, started_at, begun_at, finished_at from ended where id = $1"],
    "select id, tenant, lane, state, run_at, started_at, begun_at, finished_at from ended where id = any($1::uuid[])",
);
const LOAD: Sql = Sql::new(
    &["select run, load, wait, answers, within_p50, within_p90 from figures
       where tenant = $1 and kind = $2 and affinity = $3"],
    "select run, load, wait, answers, within_p50, within_p90 from figures
     where tenant = $1 and kind = $2 and affinity = $3 for update",
);
const UPSERT: Sql = Sql::both(&["insert into figures
         (tenant, kind, affinity, run, load, wait, answers, within_p50, within_p90, updated_at)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
     on conflict (tenant, kind, affinity) do update set run = excluded.run, load = excluded.load, wait = excluded.wait,
         answers = excluded.answers, within_p50 = excluded.within_p50, within_p90 = excluded.within_p90,
         updated_at = excluded.updated_at"]);

#[derive(Default)]
struct Samples {
    run_s: Vec<f64>,
    load_s: Vec<f64>,
    wait_s: Vec<f64>,
    /// ETAs with the time that the jobs really took.
    estimates: Vec<(Eta, f64)>,
}

impl Operation for FoldDurations {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let estimates: HashMap<JobId, (Time, Eta)> =
            self.estimates.iter().map(|(job, at, eta)| (*job, (*at, *eta))).collect();
        let mut ids: Vec<JobId> = self.sampled.iter().chain(estimates.keys()).copied().collect();
        ids.sort_unstable();
        ids.dedup();
        let rows = tx.query_each(&ENDED, &[Column::jobs(ids)], &[]).await?;
        let mut by_key: BTreeMap<(TenantId, String, String), Samples> = BTreeMap::new();
        for row in &rows {
            let (id, lane, finished_at) = (row.job("id")?, row.int("lane")?, row.time("finished_at")?);
            let (Some(started_at), state) = (row.opt_time("started_at")?, row.text("state")?) else { continue };
            if state == "canceled" {
                continue;
            }
            let lane = self.lanes.of(tx, &[lane]).await?.remove(&lane).expect("`of` returns every requested lane");
            let affinity = lane.affinity.as_ref().map_or("", Label::as_str).to_owned();
            let samples = by_key.entry((TenantId(row.int("tenant")?), lane.kind.to_string(), affinity)).or_default();
            let seconds = |from: Time, to: Time| to.ms_since(from).max(0) as f64 / 1_000.0;
            let begun_at = row.opt_time("begun_at")?;
            samples.run_s.push(seconds(begun_at.unwrap_or(started_at), finished_at));
            samples.wait_s.push(seconds(row.time("run_at")?, started_at));
            samples.load_s.extend(begun_at.map(|begun| seconds(started_at, begun)).filter(|load| *load > 0.0));
            if let Some((at, eta)) = estimates.get(&id) {
                samples.estimates.push((*eta, seconds(*at, finished_at)));
            }
        }
        for ((tenant, kind, affinity), samples) in &by_key {
            fold(tx, *tenant, kind, affinity, samples).await?;
        }
        Ok(())
    }
}

async fn fold(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    kind: &str,
    affinity: &str,
    samples: &Samples,
) -> Result<(), StoreError> {
    // Two nodes may fold the first samples of a kind at once. Without a row to lock, both would start from an empty
    // sketch, so an advisory lock serializes them.
    tx.lock(&[&format!("figures {} {kind} {affinity}", tenant.0)]).await?;
    let key = [Param::Int(tenant.0), Param::Text(kind), Param::Text(affinity)];
    let stored = tx.query_opt(&LOAD, &key).await?;
    let sketch = |column: &str, more: &[f64]| -> Result<String, StoreError> {
        let text = stored.as_ref().map(|row| row.opt_text(column)).transpose()?.flatten();
        let mut sketch = decode(text.as_deref())?;
        more.iter().for_each(|sample| sketch.add(*sample));
        Ok(encode(&sketch))
    };
    let real =
        |column: &str| Ok::<_, StoreError>(stored.as_ref().map(|row| row.opt_real(column)).transpose()?.flatten());
    let mut calibration = Calibration {
        answers: real("answers")?.unwrap_or(0.0),
        within_p50: real("within_p50")?.unwrap_or(0.0),
        within_p90: real("within_p90")?.unwrap_or(0.0),
    };
    samples.estimates.iter().for_each(|(eta, took_s)| calibration.add(*eta, *took_s));
    let (run, load, wait) =
        (sketch("run", &samples.run_s)?, sketch("load", &samples.load_s)?, sketch("wait", &samples.wait_s)?);
    let [tenant, kind, affinity] = key;
    let params = [
        tenant,
        kind,
        affinity,
        Param::Json(&run),
        Param::Json(&load),
        Param::Json(&wait),
        Param::Real(calibration.answers),
        Param::Real(calibration.within_p50),
        Param::Real(calibration.within_p90),
        Param::Time(tx.now()),
    ];
    tx.execute(&UPSERT, &params).await.map(|_| ())
}

fn encode(sketch: &Sketch) -> String {
    let hundredths = |weight: f64| (weight * 100.0).round() / 100.0;
    to_json(&sketch.buckets().map(|(bucket, weight)| (bucket, hundredths(weight))).collect::<Vec<_>>())
}

/// Reads a stored sketch; an absent one is empty.
pub(crate) fn decode(text: Option<&str>) -> Result<Sketch, StoreError> {
    let Some(text) = text else { return Ok(Sketch::default()) };
    Ok(Sketch::from_buckets(from_json::<Vec<(i32, f64)>>(text)?))
}

struct ReadDurationStatistics {
    tenant: TenantId,
    keys: Vec<StatisticsKey>,
}

const STATISTICS: Sql = Sql::both(&["select run, load, wait, answers, within_p50, within_p90 from figures
     where tenant = $1 and kind = $2 and affinity = $3"]);

impl Operation for ReadDurationStatistics {
    type Output = Vec<(StatisticsKey, DurationStatistics)>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let mut all = Vec::with_capacity(self.keys.len());
        for key in &self.keys {
            let affinity = key.1.as_ref().map_or("", Label::as_str);
            let params = [Param::Int(self.tenant.0), Param::Text(key.0.as_str()), Param::Text(affinity)];
            let statistics = match tx.query_opt(&STATISTICS, &params).await? {
                Some(row) => {
                    let sketch = |column: &str| decode(row.opt_text(column)?.as_deref());
                    let run = sketch("run")?;
                    DurationStatistics {
                        samples: run.weight(),
                        run: Durations::of(&run),
                        load: Durations::of(&sketch("load")?),
                        wait: Durations::of(&sketch("wait")?),
                        calibration: Calibration {
                            answers: row.opt_real("answers")?.unwrap_or(0.0),
                            within_p50: row.opt_real("within_p50")?.unwrap_or(0.0),
                            within_p90: row.opt_real("within_p90")?.unwrap_or(0.0),
                        },
                    }
                }
                None => DurationStatistics::default(),
            };
            all.push((key.clone(), statistics));
        }
        Ok(all)
    }
}
