//! How reported progress maps to time, per kind of work.
//!
//! Progress is rarely linear: a job may report 60 % after 20 % of its time. For each tenth of progress the curve keeps
//! how far the share of time is from the share of progress, on a logit scale, and how much that varies. The remaining
//! time by progress is blended with the remaining time by history, weighted by how well each predicted before.

use crate::signals::eta::random::normal_quantile;

/// Tenths of progress.
pub const BUCKETS: usize = 10;
/// Weight of the assumption that progress is linear, in observations.
const PRIOR: f64 = 1.0;
/// Variance of the logit under that assumption.
const PRIOR_VARIANCE: f64 = 0.5;
/// Maximum weight of the observations of one bucket.
const WEIGHT_MAX: f64 = 200.0;
const LEAST_SHARE: f64 = 0.001;

/// A report: the progress from 0 to 1, and how long the attempt had run by then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    pub share: f64,
    pub elapsed_s: f64,
}

/// What earlier reports at about the same progress showed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Observed {
    pub weight: f64,
    /// Sums of the difference between the logit of the share of time and that of the progress.
    pub shift: f64,
    pub shift_squared: f64,
    /// Sums of the squared errors of the logarithm of the remaining time, predicted by progress and by history.
    pub progress_error: f64,
    pub history_error: f64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProgressCurve {
    pub buckets: [Observed; BUCKETS],
}

fn logit(share: f64) -> f64 {
    let share = share.clamp(LEAST_SHARE, 1.0 - LEAST_SHARE);
    (share / (1.0 - share)).ln()
}

fn bucket(share: f64) -> usize {
    ((share * BUCKETS as f64) as usize).min(BUCKETS - 1)
}

impl ProgressCurve {
    /// Learns from a report of an attempt that took `total_s`. `by_history_s` is the median of the remaining time that
    /// the history gave at the same moment.
    pub fn observe(&mut self, report: Progress, total_s: f64, by_history_s: Option<f64>) {
        if !(LEAST_SHARE..=1.0 - LEAST_SHARE).contains(&report.share) || total_s <= 0.0 || report.elapsed_s <= 0.0 {
            return;
        }
        let remaining_s = (total_s - report.elapsed_s).max(total_s * LEAST_SHARE);
        let error = |predicted_s: f64| (predicted_s.max(LEAST_SHARE) / remaining_s).ln().powi(2).min(9.0);
        let progress_error = error(self.remaining(report, report.elapsed_s, 0.5));
        let history_error = by_history_s.map_or(1.0, error);
        let shift = logit(report.elapsed_s / total_s) - logit(report.share);
        let observed = &mut self.buckets[bucket(report.share)];
        let fade = if observed.weight >= WEIGHT_MAX { (WEIGHT_MAX - 1.0) / WEIGHT_MAX } else { 1.0 };
        observed.weight = observed.weight * fade + 1.0;
        observed.shift = observed.shift * fade + shift;
        observed.shift_squared = observed.shift_squared * fade + shift * shift;
        observed.progress_error = observed.progress_error * fade + progress_error;
        observed.history_error = observed.history_error * fade + history_error;
    }

    /// Mean and standard deviation of the logit shift.
    fn shift(&self, share: f64) -> (f64, f64) {
        let Observed { weight, shift, shift_squared, .. } = self.buckets[bucket(share)];
        let mean = shift / (weight + PRIOR);
        let squares = (shift_squared - 2.0 * mean * shift + weight * mean * mean).max(0.0);
        let variance = (squares + PRIOR * (PRIOR_VARIANCE + mean * mean)) / (weight + PRIOR);
        (mean, variance.sqrt())
    }

    /// The remaining time by progress alone, not exceeded with probability `level`, after `elapsed_s`.
    pub fn remaining(&self, report: Progress, elapsed_s: f64, level: f64) -> f64 {
        let (mean, deviation) = self.shift(report.share);
        // A smaller share of time means a longer job.
        let logit_of_time = logit(report.share) + mean - deviation * normal_quantile(level);
        let total_s = report.elapsed_s * (1.0 + (-logit_of_time).exp());
        // The report is older than this moment. A job that should have ended is about to.
        (total_s - elapsed_s).max(total_s * 0.02)
    }

    /// The weight of the remaining time by progress, from 0 to 1. The rest is the weight of the history.
    pub fn weight(&self, share: f64) -> f64 {
        let Observed { weight, progress_error, history_error, .. } = self.buckets[bucket(share)];
        let mean = |sum: f64| (sum + PRIOR * 0.3) / (weight + PRIOR);
        let (by_progress, by_history) = (mean(progress_error).max(1e-4), mean(history_error).max(1e-4));
        by_history / (by_progress + by_history)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learned(time_of: impl Fn(f64) -> f64) -> ProgressCurve {
        let mut curve = ProgressCurve::default();
        for number in 0..400 {
            let share = f64::from(number % 18 + 1) / 20.0;
            let total_s = 10.0 + f64::from(number % 7) * 5.0;
            curve.observe(Progress { share, elapsed_s: time_of(share) * total_s }, total_s, Some(10.0));
        }
        curve
    }

    /// Requirement S9.
    #[test]
    fn progress_that_is_not_linear_is_learned() {
        let curve = learned(|share| share * share);
        let report = Progress { share: 0.5, elapsed_s: 10.0 };
        let remaining = curve.remaining(report, 10.0, 0.5);
        assert!((remaining / 30.0 - 1.0).abs() < 0.15, "at 50 % a quarter of the time has passed: {remaining}");
        assert!(curve.weight(0.5) > 0.9, "progress predicts better than the history: {}", curve.weight(0.5));
        assert!(curve.remaining(report, 12.0, 0.5) < remaining - 1.9, "time passes after the report");
    }

    /// Requirement S9.
    #[test]
    fn progress_that_predicts_badly_gets_little_weight() {
        let mut curve = ProgressCurve::default();
        for number in 0..200 {
            // Always 50 % after one second, whatever the total.
            let total_s = if number % 2 == 0 { 21.0 } else { 19.0 };
            curve.observe(
                Progress { share: 0.5, elapsed_s: if number % 4 < 2 { 1.0 } else { 18.0 } },
                total_s,
                Some(10.0),
            );
        }
        assert!(curve.weight(0.5) < 0.6, "{}", curve.weight(0.5));
        assert!(curve.weight(0.15) <= 0.5, "without observations both count the same");
    }
}
