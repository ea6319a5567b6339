//! Adaptive conformal calibration of estimates, online, per kind of work and horizon.
//!
//! Every answer is scored when its job ends: the score is the logarithm of the real time over the predicted one, in units of
//! the predicted width. So an error of a wide estimate does not spoil the narrow ones that follow. A
//! quantile tracker follows the quantile of the scores, so that the share of ends within the corrected estimate returns
//! to its target whatever the model got wrong. The step size of a tracker is not known in advance: several trackers
//! run side by side and are weighted by their recent loss (Gibbs and Candès, "Adaptive conformal inference under
//! distribution shift", 2021, and "Conformal inference for online prediction with arbitrary distribution shifts", 2022).

use crate::signals::eta::line::{Forecast, LEVELS, P50, P90};
use crate::signals::signal::Eta;
use crate::signals::sketch::Sketch;

/// Step sizes of the trackers, in units of the spread of the scores. The last one trusts the model: where the model holds,
/// corrections by late and correlated scores would only add noise.
const STEPS: [f64; 5] = [0.02, 0.05, 0.12, 0.4, 0.0];
pub const EXPERTS: usize = STEPS.len();
/// How strongly a loss reduces the weight of a tracker, and the share of the weights that is distributed evenly.
const LOSS_RATE: f64 = 0.3;
const MIXING: f64 = 0.002;
/// A correction cannot exceed a factor of a thousand, and a score cannot exceed that of the narrowest estimate.
const FACTOR_MAX: f64 = 6.9;
const SCORE_MAX: f64 = 100.0;
/// Limits of the width: the logarithm of the p90 over the p50.
const WIDTH: (f64, f64) = (0.03, 1.5);
/// Seconds added to both times, so that the score of very short times is not noise.
const LEAST_S: f64 = 0.05;
/// Scored answers of a horizon at which its own correction counts as much as that of the whole kind.
const HORIZON_PRIOR: f64 = 10.0;
/// Maximum weight of the scored answers in the shares.
const ANSWERS_MAX: f64 = 1_000.0;
/// Minimum number of scored answers for a measured accuracy.
const ANSWERS_MIN: f64 = 5.0;
/// Weight of the newest answer in the recent share, and the share below which no estimate is shown.
const RECENT: f64 = 0.05;
const RECENT_LEAST: f64 = 0.5;
/// Scored answers without which an overdue job has no estimate.
const OVERDUE_LEAST: f64 = 10.0;

/// What an estimate depends on. Errors differ by horizon, so each has a correction of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Horizon {
    /// Waits for its `run_at`.
    Scheduled,
    /// Waits in line, for less than about two of its run times.
    WaitingShort,
    WaitingLong,
    /// Its model is being loaded.
    Loading,
    /// Runs, for less time than half of its kind take.
    RunningEarly,
    /// Runs, for more time than half and less than most of its kind take.
    RunningLate,
    /// Runs for longer than 95 % of its kind.
    Overdue,
    /// Estimated from other affinities of the kind. The errors say nothing about later estimates.
    Borrowed,
}

pub const HORIZONS: usize = 8;

impl Horizon {
    pub const ALL: [Self; HORIZONS] = [
        Self::Scheduled,
        Self::WaitingShort,
        Self::WaitingLong,
        Self::Loading,
        Self::RunningEarly,
        Self::RunningLate,
        Self::Overdue,
        Self::Borrowed,
    ];

    pub const fn index(self) -> usize {
        self as usize
    }

    pub fn waiting(p50_s: f64, run_p50_s: f64) -> Self {
        if p50_s < 3.0 * run_p50_s { Self::WaitingShort } else { Self::WaitingLong }
    }

    /// `share_within`: the share of earlier jobs that took at most the elapsed time.
    pub fn running(share_within: f64) -> Self {
        match share_within {
            share if share < 0.5 => Self::RunningEarly,
            share if share < 0.95 => Self::RunningLate,
            _ => Self::Overdue,
        }
    }
}

fn width(forecast: &Forecast) -> f64 {
    ((forecast.p90_s() + LEAST_S) / (forecast.p50_s() + LEAST_S)).ln().clamp(WIDTH.0, WIDTH.1)
}

/// Follows one quantile of the scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tracker {
    pub corrections: [f64; EXPERTS],
    pub weights: [f64; EXPERTS],
}

impl Default for Tracker {
    fn default() -> Self {
        Self { corrections: [0.0; EXPERTS], weights: [1.0 / EXPERTS as f64; EXPERTS] }
    }
}

impl Tracker {
    fn correction(&self) -> f64 {
        self.corrections.iter().zip(self.weights).map(|(correction, weight)| correction * weight).sum()
    }

    fn score(&mut self, score: f64, level: f64, spread: f64) {
        let pinball = |error: f64| if error >= 0.0 { level * error } else { (level - 1.0) * error };
        for (expert, step) in STEPS.iter().enumerate() {
            let error = score - self.corrections[expert];
            self.weights[expert] *= (-LOSS_RATE * pinball(error) / spread).exp();
            let gradient = if error > 0.0 { level } else { level - 1.0 };
            let corrected = self.corrections[expert] + step * spread * gradient;
            self.corrections[expert] = corrected.clamp(-SCORE_MAX, SCORE_MAX);
        }
        let sum: f64 = self.weights.iter().sum();
        for weight in &mut self.weights {
            *weight = *weight / sum.max(f64::MIN_POSITIVE) * (1.0 - MIXING) + MIXING / EXPERTS as f64;
        }
    }
}

/// The corrections of one horizon.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Correction {
    pub p50: Tracker,
    pub p90: Tracker,
    /// Mean distance of the scores from their median: the unit of the steps.
    pub spread: f64,
    pub scored: f64,
    /// The share of the newest answers whose p90 held.
    pub recent_p90: f64,
}

impl Default for Correction {
    fn default() -> Self {
        Self { p50: Tracker::default(), p90: Tracker::default(), spread: 0.5, scored: 0.0, recent_p90: 0.9 }
    }
}

impl Correction {
    fn score(&mut self, answer: &Answer, took_s: f64) {
        let width = width(&answer.forecast);
        let score = |predicted_s: f64| {
            (((took_s + LEAST_S) / (predicted_s + LEAST_S)).ln() / width).clamp(-SCORE_MAX, SCORE_MAX)
        };
        let p50 = score(answer.forecast.p50_s());
        let deviation = (p50 - self.p50.correction()).abs();
        self.spread += (deviation - self.spread) / (self.scored + 4.0).min(50.0);
        let spread = self.spread.clamp(0.1, 20.0);
        self.p50.score(p50, LEVELS[P50], spread);
        self.p90.score(score(answer.forecast.p90_s()), LEVELS[P90], spread);
        self.scored = (self.scored + 1.0).min(ANSWERS_MAX);
        self.recent_p90 += (f64::from(took_s <= answer.corrected[P90]) - self.recent_p90) * RECENT;
    }
}

/// An answer that was given for a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answer {
    pub horizon: Horizon,
    pub forecast: Forecast,
    /// The corrected quantiles.
    pub corrected: [f64; LEVELS.len()],
    /// False if there was too little evidence. It is scored nevertheless, and so becomes evidence.
    pub is_shown: bool,
}

impl Answer {
    pub fn eta(&self) -> Eta {
        Eta { p50_s: self.corrected[P50], p90_s: self.corrected[P90] }
    }

    pub fn shown(&self) -> Option<Eta> {
        self.is_shown.then(|| self.eta())
    }
}

/// The accuracy of the answers for one kind of work, and what corrects the next ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calibration {
    /// Shown answers whose job has ended. Old ones fade, as in the counts below.
    pub answers: f64,
    /// By level: answers whose job ended within the quantile.
    pub within: [f64; LEVELS.len()],
    /// Distances between the p50 and the p90 that were shown.
    pub widths: Sketch,
    /// The correction of the whole kind, for horizons with few answers.
    pub kind: Correction,
    pub horizons: [Correction; HORIZONS],
}

impl Calibration {
    /// Corrects a forecast.
    pub fn answer(&self, horizon: Horizon, forecast: Forecast) -> Answer {
        let own = &self.horizons[horizon.index()];
        let share = own.scored / (own.scored + HORIZON_PRIOR);
        let mix = |of: fn(&Correction) -> f64| share * of(own) + (1.0 - share) * of(&self.kind);
        let (p50, p90) = (mix(|one| one.p50.correction()), mix(|one| one.p90.correction()));
        let width = width(&forecast);
        let mut corrected = [0.0; LEVELS.len()];
        let mut longest: f64 = 0.0;
        for (place, level) in LEVELS.iter().enumerate() {
            let part = ((level - LEVELS[P50]) / (LEVELS[P90] - LEVELS[P50])).clamp(0.0, 1.0);
            let factor = ((p50 + (p90 - p50) * part) * width).clamp(-FACTOR_MAX, FACTOR_MAX).exp();
            let value_s = (forecast.quantiles[place] + LEAST_S) * factor - LEAST_S;
            longest = longest.max(value_s);
            corrected[place] = longest;
        }
        let has_evidence = horizon != Horizon::Overdue || own.scored >= OVERDUE_LEAST;
        let is_shown = has_evidence && (own.scored < 1.0 / RECENT || own.recent_p90 >= RECENT_LEAST);
        Answer { horizon, forecast, corrected, is_shown }
    }

    /// Scores an answer: the job ended `took_s` after it was given.
    pub fn score(&mut self, answer: &Answer, took_s: f64) {
        if answer.horizon != Horizon::Borrowed {
            self.kind.score(answer, took_s);
        }
        self.horizons[answer.horizon.index()].score(answer, took_s);
        if !answer.is_shown {
            return;
        }
        if self.answers >= ANSWERS_MAX {
            let fade = (ANSWERS_MAX - 1.0) / ANSWERS_MAX;
            self.answers *= fade;
            self.within.iter_mut().for_each(|count| *count *= fade);
        }
        self.answers += 1.0;
        for (count, quantile_s) in self.within.iter_mut().zip(answer.corrected) {
            *count += f64::from(took_s <= quantile_s);
        }
        let Eta { p50_s, p90_s } = answer.eta();
        self.widths.add(p90_s - p50_s);
    }

    /// The shares of ends within each level. `None` if there are too few answers.
    pub fn shares(&self) -> Option<[f64; LEVELS.len()]> {
        (self.answers >= ANSWERS_MIN).then(|| self.within.map(|count| count / self.answers))
    }

    /// The shares of ends within the p50 and the p90.
    pub fn held(&self) -> Option<(f64, f64)> {
        self.shares().map(|shares| (shares[P50], shares[P90]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signals::eta::random::{RandomSource, normal_quantile};

    fn forecast(median_s: f64, deviation: f64) -> Forecast {
        let quantiles = LEVELS.map(|level| median_s * (deviation * normal_quantile(level)).exp());
        Forecast { quantiles, swaps: 0 }
    }

    /// Answers with a wrong model, and returns the shares that held among the last answers.
    fn held(
        model: (f64, f64),
        truth: impl Fn(usize) -> (f64, f64),
        rounds: usize,
        last: usize,
        seed: u64,
    ) -> (f64, f64) {
        let mut calibration = Calibration::default();
        let mut random = RandomSource::new(seed);
        let (mut p50, mut p90) = (0.0, 0.0);
        for round in 0..rounds {
            let answer = calibration.answer(Horizon::RunningEarly, forecast(model.0, model.1));
            let (median_s, deviation) = truth(round);
            let took_s = median_s * (deviation * random.normal()).exp();
            if round >= rounds - last {
                p50 += f64::from(took_s <= answer.corrected[P50]) / last as f64;
                p90 += f64::from(took_s <= answer.corrected[P90]) / last as f64;
            }
            calibration.score(&answer, took_s);
        }
        (p50, p90)
    }

    /// Requirement S9.
    #[test]
    fn a_wrong_model_is_corrected_to_its_targets() {
        for (model, truth) in [((10.0, 0.1), (40.0, 0.8)), ((10.0, 1.0), (2.0, 0.2)), ((10.0, 0.5), (10.0, 0.5))] {
            let seeds: Vec<(f64, f64)> = (11..21).map(|seed| held(model, |_| truth, 2_000, 1_500, seed)).collect();
            let mean = |of: fn(&(f64, f64)) -> f64| seeds.iter().map(of).sum::<f64>() / seeds.len() as f64;
            let (p50, p90) = (mean(|held| held.0), mean(|held| held.1));
            assert!((0.46..=0.54).contains(&p50) && (0.88..=0.92).contains(&p90), "{model:?} {truth:?}: {seeds:?}");
        }
    }

    /// Requirement S9.
    #[test]
    fn after_a_shift_the_coverage_returns_within_fifty_answers() {
        let shift = |round: usize| if round < 1_000 { (10.0, 0.5) } else { (50.0, 0.5) };
        let seeds: Vec<f64> = (11..31).map(|seed| held((10.0, 0.5), shift, 1_150, 100, seed).1).collect();
        let mean = seeds.iter().sum::<f64>() / seeds.len() as f64;
        assert!((0.80..=0.97).contains(&mean) && seeds.iter().all(|p90| *p90 >= 0.75), "{seeds:?}");
    }

    /// Requirement S9.
    #[test]
    fn an_estimate_that_keeps_failing_is_not_shown() {
        let mut failing = Calibration::default();
        failing.horizons[Horizon::WaitingLong.index()].scored = 100.0;
        failing.horizons[Horizon::WaitingLong.index()].recent_p90 = 0.3;
        assert_eq!(failing.answer(Horizon::WaitingLong, forecast(1.0, 0.1)).shown(), None);
        assert!(failing.answer(Horizon::RunningEarly, forecast(1.0, 0.1)).shown().is_some());
        assert_eq!(failing.answer(Horizon::Overdue, forecast(1.0, 0.1)).shown(), None, "no evidence at all");
    }
}
