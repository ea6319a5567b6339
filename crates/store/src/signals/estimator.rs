//! Converts the history of one kind of work to and from its row in `figures`.

use domain::signals::eta::arrivals::BurstSize;
use domain::signals::eta::calibration::{Calibration, Correction, HORIZONS, Tracker};
use domain::signals::eta::durations::DurationHistory;
use domain::signals::eta::line::{LEVELS, P50, P90};
use domain::signals::eta::progress::{BUCKETS, Observed, ProgressCurve};
use domain::signals::eta::retries::{ATTEMPTS, AttemptShares};
use domain::signals::eta::statistics::WorkHistory;
use domain::signals::eta::turnaround::Turnaround;
use domain::signals::sketch::Sketch;
use serde::{Deserialize, Serialize};

use crate::db::codec::{from_json, to_json};
use crate::db::tx::Row;
use crate::error::StoreError;

/// The column `estimator`. Missing members are empty, so that an older or newer version can read it.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct StoredEstimator {
    run: Vec<f64>,
    load: Vec<f64>,
    wait: Vec<f64>,
    /// By attempt: ended, retried.
    attempts: Vec<(f64, f64)>,
    /// By tenth of progress: the members of `Observed`.
    progress: Vec<[f64; 5]>,
    /// Bursts and jobs.
    bursts: (f64, f64),
    /// Weight and sum.
    turnaround: (f64, f64),
    within: Vec<f64>,
    widths: Vec<(i32, f64)>,
    kind: StoredCorrection,
    horizons: Vec<StoredCorrection>,
}

#[derive(Serialize, Deserialize)]
#[serde(default)]
struct StoredCorrection {
    p50: StoredTracker,
    p90: StoredTracker,
    spread: f64,
    scored: f64,
    recent_p90: f64,
}

/// By expert: correction and weight.
type StoredTracker = Vec<(f64, f64)>;

impl Default for StoredCorrection {
    fn default() -> Self {
        Self::of(&Correction::default())
    }
}

/// Rounds to four digits after the point. Nothing here is more precise.
fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

impl StoredCorrection {
    fn of(correction: &Correction) -> Self {
        let tracker = |tracker: &Tracker| {
            tracker.corrections.iter().zip(tracker.weights).map(|(c, w)| (rounded(*c), rounded(w))).collect()
        };
        Self {
            p50: tracker(&correction.p50),
            p90: tracker(&correction.p90),
            spread: rounded(correction.spread),
            scored: rounded(correction.scored),
            recent_p90: rounded(correction.recent_p90),
        }
    }

    fn read(&self) -> Correction {
        let tracker = |stored: &StoredTracker| {
            let mut tracker = Tracker::default();
            for (expert, (correction, weight)) in stored.iter().enumerate().take(tracker.weights.len()) {
                tracker.corrections[expert] = *correction;
                // A weight of zero would never recover.
                tracker.weights[expert] = weight.max(1e-4);
            }
            tracker
        };
        Correction {
            p50: tracker(&self.p50),
            p90: tracker(&self.p90),
            spread: self.spread,
            scored: self.scored,
            recent_p90: self.recent_p90,
        }
    }
}

/// The columns of `figures` that a fold writes.
pub(super) struct FigureColumns {
    pub(super) run: String,
    pub(super) load: String,
    pub(super) wait: String,
    pub(super) answers: f64,
    pub(super) within_p50: f64,
    pub(super) within_p90: f64,
    pub(super) estimator: String,
}

pub(super) fn write(history: &WorkHistory) -> FigureColumns {
    let WorkHistory { run, load, wait, attempts, progress, bursts, turnaround, calibration } = history;
    let recent = |history: &DurationHistory| history.recent.iter().copied().map(rounded).collect();
    let observed =
        |one: &Observed| [one.weight, one.shift, one.shift_squared, one.progress_error, one.history_error].map(rounded);
    let stored = StoredEstimator {
        run: recent(run),
        load: recent(load),
        wait: recent(wait),
        attempts: attempts.ended.iter().zip(attempts.retried).map(|(e, r)| (rounded(*e), rounded(r))).collect(),
        progress: match progress.buckets.iter().any(|one| one.weight > 0.0) {
            true => progress.buckets.iter().map(observed).collect(),
            false => Vec::new(),
        },
        bursts: (rounded(bursts.bursts), rounded(bursts.jobs)),
        turnaround: (rounded(turnaround.weight), rounded(turnaround.sum_s)),
        within: calibration.within.iter().copied().map(rounded).collect(),
        widths: buckets(&calibration.widths),
        kind: StoredCorrection::of(&calibration.kind),
        horizons: calibration.horizons.iter().map(StoredCorrection::of).collect(),
    };
    FigureColumns {
        run: to_json(&buckets(&run.sketch)),
        load: to_json(&buckets(&load.sketch)),
        wait: to_json(&buckets(&wait.sketch)),
        answers: calibration.answers,
        within_p50: calibration.within[P50],
        within_p90: calibration.within[P90],
        estimator: to_json(&stored),
    }
}

fn buckets(sketch: &Sketch) -> Vec<(i32, f64)> {
    let hundredths = |weight: f64| (weight * 100.0).round() / 100.0;
    sketch.buckets().map(|(bucket, weight)| (bucket, hundredths(weight))).collect()
}

/// Reads a stored sketch; an absent one is empty.
pub(crate) fn sketch(text: Option<&str>) -> Result<Sketch, StoreError> {
    let Some(text) = text else { return Ok(Sketch::default()) };
    Ok(Sketch::from_buckets(from_json::<Vec<(i32, f64)>>(text)?))
}

/// Reads the columns `run`, `load`, `wait`, `answers`, `within_p50`, `within_p90` and `estimator`.
pub(super) fn read(row: &Row) -> Result<WorkHistory, StoreError> {
    let stored = match row.opt_text("estimator")? {
        Some(text) => from_json::<StoredEstimator>(&text)?,
        None => StoredEstimator::default(),
    };
    let history = |column: &str, recent: Vec<f64>| -> Result<DurationHistory, StoreError> {
        Ok(DurationHistory::new(sketch(row.opt_text(column)?.as_deref())?, recent))
    };
    let mut attempts = AttemptShares::default();
    for (place, (ended, retried)) in stored.attempts.iter().enumerate().take(ATTEMPTS) {
        (attempts.ended[place], attempts.retried[place]) = (*ended, *retried);
    }
    let mut progress = ProgressCurve::default();
    for (place, [weight, shift, shift_squared, progress_error, history_error]) in
        stored.progress.iter().copied().enumerate().take(BUCKETS)
    {
        progress.buckets[place] = Observed { weight, shift, shift_squared, progress_error, history_error };
    }
    let mut calibration = Calibration {
        answers: row.opt_real("answers")?.unwrap_or(0.0),
        widths: Sketch::from_buckets(stored.widths),
        kind: stored.kind.read(),
        ..Calibration::default()
    };
    match stored.within.len() {
        levels if levels == LEVELS.len() => calibration.within.copy_from_slice(&stored.within),
        // A version without these columns counted answers of another estimator.
        _ => calibration.answers = 0.0,
    }
    for (place, correction) in stored.horizons.iter().enumerate().take(HORIZONS) {
        calibration.horizons[place] = correction.read();
    }
    Ok(WorkHistory {
        run: history("run", stored.run)?,
        load: history("load", stored.load)?,
        wait: history("wait", stored.wait)?,
        attempts,
        progress,
        bursts: BurstSize { bursts: stored.bursts.0, jobs: stored.bursts.1 },
        turnaround: Turnaround { weight: stored.turnaround.0, sum_s: stored.turnaround.1 },
        calibration,
    })
}
