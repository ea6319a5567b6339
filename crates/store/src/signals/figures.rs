//! How long each kind of work takes, kept from jobs that ended (S9).
//!
//! A settle writes nothing for it. The node that committed an end remembers the id in memory, at most a few hundred in a
//! second, chosen evenly when there are more; a task reads those rows and folds them into the figures. What a crash
//! forgets is a second's worth of samples.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use domain::eta::{Calibration, Durations};
use domain::limits::{FIGURE_ANSWERS, FIGURE_SAMPLES};
use domain::signal::Eta;
use domain::sketch::Sketch;
use domain::{Affinity, JobId, Label, Name, TenantId, Time};

use crate::codec::{from_json, to_json};
use crate::error::StoreError;
use crate::kept::{Era, Look};
use crate::lanes::LaneCache;
use crate::store::Store;
use crate::tx::{Column, Operation, Param, Sql, Tx};

/// What is known of one kind of work with one affinity.
#[derive(Clone, Debug, Default)]
pub struct Figure {
    pub run: Option<Durations>,
    pub load: Option<Durations>,
    pub wait: Option<Durations>,
    /// How often what was said of such jobs held.
    pub calibration: Calibration,
    pub samples: f64,
}

pub type FigureKey = (Name, Affinity);

/// Ends that this node committed since the last fold, and what it said of jobs that have not ended.
#[derive(Clone, Default)]
pub(crate) struct EndedFeed {
    inner: Arc<Mutex<Feed>>,
}

#[derive(Default)]
struct Feed {
    sampled: Vec<JobId>,
    seen: u64,
    answers: HashMap<JobId, (Time, Eta)>,
    judged: Vec<(JobId, Time, Eta)>,
}

impl EndedFeed {
    pub(crate) fn note(&self, ended: &[JobId]) {
        if ended.is_empty() {
            return;
        }
        let mut feed = self.inner.lock().expect("nobody panics with the feed in hand");
        for job in ended {
            if let Some((at, said)) = feed.answers.remove(job)
                && feed.judged.len() < FIGURE_SAMPLES
            {
                feed.judged.push((*job, at, said));
            }
            feed.seen += 1;
            if feed.sampled.len() < FIGURE_SAMPLES {
                feed.sampled.push(*job);
                continue;
            }
            // Each of those seen has the same chance to be kept; an id's last bits are as good as dice.
            let place = job.uuid().as_u64_pair().1 % feed.seen;
            if let Some(kept) = feed.sampled.get_mut(place as usize) {
                *kept = *job;
            }
        }
    }

    /// Remembers the first answer that was given on a job, to see whether it holds.
    fn answered(&self, job: JobId, now: Time, said: Eta) {
        let mut feed = self.inner.lock().expect("nobody panics with the feed in hand");
        if feed.answers.len() >= FIGURE_ANSWERS {
            // Jobs that end on other nodes are never judged here: begin anew rather than stop measuring.
            feed.answers.clear();
        }
        feed.answers.entry(job).or_insert((now, said));
    }

    fn take(&self) -> (Vec<JobId>, Vec<(JobId, Time, Eta)>) {
        let mut feed = self.inner.lock().expect("nobody panics with the feed in hand");
        feed.seen = 0;
        (std::mem::take(&mut feed.sampled), std::mem::take(&mut feed.judged))
    }
}

impl Store {
    /// An answer was given: calibration is measured on what people were told.
    pub fn note_answer(&self, job: JobId, now: Time, said: Eta) {
        self.ended_feed().answered(job, now, said);
    }

    /// Folds what ended on this node since the last time. Tells how many jobs were looked at.
    pub async fn fold_figures(&self) -> Result<usize, StoreError> {
        let (sampled, judged) = self.ended_feed().take();
        if sampled.is_empty() && judged.is_empty() {
            return Ok(0);
        }
        let count = sampled.len();
        self.write(Fold { sampled, judged, lanes: self.lanes().clone() }).await?;
        self.kept_figures().forget_all();
        Ok(count)
    }

    /// What is known of these kinds of work, at most some seconds old.
    pub async fn figures(
        &self,
        tenant: TenantId,
        keys: Vec<FigureKey>,
    ) -> Result<HashMap<FigureKey, Arc<Figure>>, StoreError> {
        let (kept, era) = (self.kept_figures(), self.kept_figures().era());
        let mut found = HashMap::new();
        let (mut missing, mut aging) = (Vec::new(), Vec::new());
        for key in keys.into_iter().collect::<BTreeSet<_>>() {
            match kept.look(&(tenant, key.clone())) {
                Look::Fresh(figure) => drop(found.insert(key, figure)),
                Look::Aging(figure) => {
                    aging.push(key.clone());
                    found.insert(key, figure);
                }
                Look::Missing => missing.push(key),
            }
        }
        if !aging.is_empty() {
            let store = self.clone();
            kept.renew(async move { store.read_figures(tenant, aging, era).await.map(drop) });
        }
        if !missing.is_empty() {
            found.extend(self.read_figures(tenant, missing, era).await?);
        }
        Ok(found)
    }

    async fn read_figures(
        &self,
        tenant: TenantId,
        keys: Vec<FigureKey>,
        era: Era,
    ) -> Result<Vec<(FigureKey, Arc<Figure>)>, StoreError> {
        let read = self.read(ReadFigures { tenant, keys }).await?;
        let keep = |(key, figure): (FigureKey, Figure)| {
            let kept = self.kept_figures().keep(era, (tenant, key.clone()), figure);
            (key, kept)
        };
        Ok(read.into_iter().map(keep).collect())
    }
}

struct Fold {
    sampled: Vec<JobId>,
    judged: Vec<(JobId, Time, Eta)>,
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
    judged: Vec<(Eta, f64)>,
}

impl Operation for Fold {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let judged: HashMap<JobId, (Time, Eta)> =
            self.judged.iter().map(|(job, at, said)| (*job, (*at, *said))).collect();
        let mut ids: Vec<JobId> = self.sampled.iter().chain(judged.keys()).copied().collect();
        ids.sort_unstable();
        ids.dedup();
        let rows = tx.query_each(&ENDED, &[Column::jobs(ids)], &[]).await?;
        let mut by_key: BTreeMap<(TenantId, String, String), Samples> = BTreeMap::new();
        for row in &rows {
            let (id, lane, finished_at) = (row.job(0)?, row.int(2)?, row.time(7)?);
            let (Some(started_at), state) = (row.opt_time(5)?, row.text(3)?) else { continue };
            if state == "canceled" {
                continue;
            }
            let lane = self.lanes.of(tx, &[lane]).await?.remove(&lane).expect("asked for");
            let affinity = lane.affinity.as_ref().map_or("", Label::as_str).to_owned();
            let samples = by_key.entry((TenantId(row.int(1)?), lane.kind.to_string(), affinity)).or_default();
            let seconds = |from: Time, to: Time| to.ms_since(from).max(0) as f64 / 1_000.0;
            let begun_at = row.opt_time(6)?;
            samples.run_s.push(seconds(begun_at.unwrap_or(started_at), finished_at));
            samples.wait_s.push(seconds(row.time(4)?, started_at));
            samples.load_s.extend(begun_at.map(|begun| seconds(started_at, begun)).filter(|load| *load > 0.0));
            if let Some((at, said)) = judged.get(&id) {
                samples.judged.push((*said, seconds(*at, finished_at)));
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
    // Two nodes may fold the first samples of a kind at once: whoever comes second adds to what the first wrote.
    tx.lock(&[&format!("figures {} {kind} {affinity}", tenant.0)]).await?;
    let key = [Param::Int(tenant.0), Param::Text(kind), Param::Text(affinity)];
    let kept = tx.query_opt(&LOAD, &key).await?;
    let sketch = |column: usize, more: &[f64]| -> Result<String, StoreError> {
        let text = kept.as_ref().map(|row| row.opt_text(column)).transpose()?.flatten();
        let mut sketch = decode(text.as_deref())?;
        more.iter().for_each(|sample| sketch.add(*sample));
        Ok(encode(&sketch))
    };
    let real =
        |column: usize| Ok::<_, StoreError>(kept.as_ref().map(|row| row.opt_real(column)).transpose()?.flatten());
    let mut calibration = Calibration {
        answers: real(3)?.unwrap_or(0.0),
        within_p50: real(4)?.unwrap_or(0.0),
        within_p90: real(5)?.unwrap_or(0.0),
    };
    samples.judged.iter().for_each(|(said, took_s)| calibration.add(*said, *took_s));
    let (run, load, wait) = (sketch(0, &samples.run_s)?, sketch(1, &samples.load_s)?, sketch(2, &samples.wait_s)?);
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

pub(crate) fn decode(text: Option<&str>) -> Result<Sketch, StoreError> {
    let Some(text) = text else { return Ok(Sketch::default()) };
    Ok(Sketch::from_buckets(from_json::<Vec<(i32, f64)>>(text)?))
}

struct ReadFigures {
    tenant: TenantId,
    keys: Vec<FigureKey>,
}

const FIGURE: Sql = Sql::both(&["select run, load, wait, answers, within_p50, within_p90 from figures
     where tenant = $1 and kind = $2 and affinity = $3"]);

impl Operation for ReadFigures {
    type Output = Vec<(FigureKey, Figure)>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let mut figures = Vec::with_capacity(self.keys.len());
        for key in &self.keys {
            let affinity = key.1.as_ref().map_or("", Label::as_str);
            let params = [Param::Int(self.tenant.0), Param::Text(key.0.as_str()), Param::Text(affinity)];
            let figure = match tx.query_opt(&FIGURE, &params).await? {
                Some(row) => {
                    let sketch = |column: usize| decode(row.opt_text(column)?.as_deref());
                    let run = sketch(0)?;
                    Figure {
                        samples: run.weight(),
                        run: Durations::of(&run),
                        load: Durations::of(&sketch(1)?),
                        wait: Durations::of(&sketch(2)?),
                        calibration: Calibration {
                            answers: row.opt_real(3)?.unwrap_or(0.0),
                            within_p50: row.opt_real(4)?.unwrap_or(0.0),
                            within_p90: row.opt_real(5)?.unwrap_or(0.0),
                        },
                    }
                }
                None => Figure::default(),
            };
            figures.push((key.clone(), figure));
        }
        Ok(figures)
    }
}
