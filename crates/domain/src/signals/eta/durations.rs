//! The distribution of the durations of one kind of work, from its history.
//!
//! The history is a sketch of the last thousand samples and a list of the newest ones. If the newest samples contradict
//! the sketch (Kolmogorov-Smirnov test), the sketch restarts from them: after a change of the durations the estimates
//! follow within about ten jobs.
//!
//! A distribution has a tail beyond its longest sample, because the next job may take longer than all earlier ones: of
//! `n` samples, the next one is the longest with probability `1 / (n + 1)`. So few samples give wide estimates. The mean is
//! uncertain, too: the time for many jobs is never known better than the mean of the samples.
//!
//! A kind of work without a history with this affinity borrows that of its other affinities, and is wider by how much the
//! affinities differ.

use crate::signals::eta::random::RandomSource;
use crate::signals::sketch::Sketch;

/// Minimum sample weight for a statistic.
pub const MIN_SAMPLES: f64 = 5.0;
/// Minimum sample weight where other affinities of the kind show how much such durations vary.
pub const MIN_SAMPLES_WITH_KIN: f64 = 2.0;
/// The newest samples that are kept one by one.
pub const RECENT_SAMPLES: usize = 64;
const TABLE: usize = 128;
/// Lengths of the newest samples that are compared with the sketch.
const SUFFIXES: [usize; 4] = [8, 16, 32, 64];
/// Critical value of the test, at about one false alarm in ten thousand tests.
const CRITICAL: f64 = 2.25;
/// A change of the median below this factor (as a logarithm) or this many seconds does not restart the history.
const CHANGE: f64 = 0.22;
const CHANGE_S: f64 = 0.05;
/// Limits of the exponent of the tail: a longer tail than that of any sample is assumed, but a finite one.
const TAIL: (f64, f64) = (0.05, 1.0);
/// The exponent for a single sample. It falls with the square root of the samples, because few show a spread too small.
const TAIL_OF_ONE: f64 = 0.3;
/// The relative spread that is assumed before there are samples, and its weight in samples.
const PRIOR_SPREAD: (f64, f64) = (0.3, 2.0);
/// How much affinities of a kind differ before several are known: standard deviation of the logarithm.
const KIN_SPREAD: f64 = 0.2;
/// Shorter durations are equal.
const LEAST_S: f64 = 0.001;

/// Samples of one duration: the time to run, to load or to wait.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DurationHistory {
    pub sketch: Sketch,
    /// Newest last.
    pub recent: Vec<f64>,
}

impl DurationHistory {
    pub fn new(sketch: Sketch, recent: Vec<f64>) -> Self {
        Self { sketch, recent }
    }

    pub fn add(&mut self, seconds: f64) {
        self.sketch.add(seconds);
        self.recent.push(seconds.max(LEAST_S));
        if self.recent.len() > RECENT_SAMPLES {
            self.recent.drain(..self.recent.len() - RECENT_SAMPLES);
        }
        self.restart_if_changed();
    }

    /// Restarts the sketch from the newest samples if they contradict the older ones.
    fn restart_if_changed(&mut self) {
        for length in SUFFIXES {
            let Some(first) = self.recent.len().checked_sub(length) else { return };
            let suffix = &self.recent[first..];
            let older = self.sketch.weight() - length as f64;
            if older < length as f64 {
                return;
            }
            let distance = self.distance_to_older(suffix);
            let count = length as f64;
            let is_certain = distance > CRITICAL * ((count + older) / (count * older)).sqrt();
            if is_certain && self.differs(suffix) {
                let mut sketch = Sketch::default();
                suffix.iter().for_each(|sample| sketch.add(*sample));
                self.sketch = sketch;
                self.recent.drain(..first);
                return;
            }
        }
    }

    /// True if the median changed enough to matter. A small difference can be certain, for example between batches.
    fn differs(&self, suffix: &[f64]) -> bool {
        let mut sorted = suffix.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (before, after) = (self.sketch.quantile(0.5).unwrap_or(LEAST_S), sorted[sorted.len() / 2]);
        (after - before).abs() >= CHANGE_S && (after / before).ln().abs() >= CHANGE
    }

    /// The greatest difference between the distribution of the suffix and that of the samples before it.
    fn distance_to_older(&self, suffix: &[f64]) -> f64 {
        let mut sorted = suffix.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (all, own) = (self.sketch.weight(), sorted.len() as f64);
        let mut distance: f64 = 0.0;
        let mut buckets = self.sketch.cumulative();
        let mut below = 0.0;
        let mut next = buckets.next();
        for (rank, sample) in sorted.iter().enumerate() {
            while let Some((_, weight)) = next.filter(|(value, _)| *value < *sample * 0.99) {
                below = weight;
                next = buckets.next();
            }
            // The sketch includes the suffix itself.
            let older_below = (below - rank as f64).max(0.0) / (all - own);
            let at = next.filter(|(value, _)| *value <= *sample * 1.01).map_or(below, |(_, weight)| weight);
            let older_at = (at - rank as f64 - 1.0).max(0.0) / (all - own);
            distance = distance.max(rank as f64 / own - older_below).max(older_below - rank as f64 / own);
            let upper = (rank as f64 + 1.0) / own;
            distance = distance.max(upper - older_at.max(older_below)).max(older_at - upper);
        }
        distance
    }

    pub fn durations(&self) -> Option<Durations> {
        self.durations_from(MIN_SAMPLES)
    }

    /// `None` with less sample weight than `least`.
    pub fn durations_from(&self, least: f64) -> Option<Durations> {
        let weight = self.sketch.weight();
        let table = || match self.recent.len() as f64 >= weight {
            // All samples are known exactly. The buckets of the sketch would shift the mean of a long line by a percent.
            true => exact_table(&self.recent),
            false => self.sketch.table(TABLE),
        };
        let durations = (weight > 0.0 && weight >= least).then(|| Durations::from_table(table(), weight))?;
        // A few samples may be off in both directions, not only in their tail.
        Some(if weight < MIN_SAMPLES { durations.off_by(KIN_SPREAD / weight.sqrt()) } else { durations })
    }
}

/// Evenly spaced quantiles of the samples.
fn exact_table(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = |entry: usize| (entry as f64 + 0.5) / TABLE as f64 * sorted.len() as f64;
    (0..TABLE).map(|entry| sorted[place(entry) as usize]).collect()
}

/// The durations of one kind of work, as evenly spaced quantiles and a tail.
#[derive(Clone, Debug, PartialEq)]
pub struct Durations {
    table: Vec<f64>,
    mean_s: f64,
    deviation_s: f64,
    samples: f64,
    /// Probability of a duration beyond the table.
    beyond: f64,
    /// Exponent of the tail (Pareto).
    tail: f64,
    /// How much the whole distribution may be off: standard deviation of the logarithm.
    borrowed: f64,
}

impl Durations {
    /// The same distribution, which may be off as a whole.
    fn off_by(self, borrowed: f64) -> Self {
        Self { borrowed, beyond: 1.0 / TABLE as f64, ..self }
    }

    /// The distribution of a further affinity, from those of other affinities of the same kind. `None` without any.
    pub fn borrow_from(kin: &[Self]) -> Option<Self> {
        let count = kin.len() as f64;
        let logarithm = |one: &Self, share: f64| one.quantile(share).max(LEAST_S).ln();
        let mean = |share: f64| kin.iter().map(|one| logarithm(one, share)).sum::<f64>() / count;
        let middle = (!kin.is_empty()).then(|| mean(0.5))?;
        let differences: f64 = kin.iter().map(|one| (logarithm(one, 0.5) - middle).powi(2)).sum();
        let borrowed = ((KIN_SPREAD * KIN_SPREAD + differences) / count).sqrt();
        let at = |entry: usize| mean((entry as f64 + 0.5) / TABLE as f64).exp();
        let samples = kin.iter().map(|one| one.samples).sum();
        Some(Self::from_table((0..TABLE).map(at).collect(), samples).off_by(borrowed))
    }

    /// The distribution with these quantiles, evenly spaced and sorted, as of `samples` samples.
    pub fn from_table(table: Vec<f64>, samples: f64) -> Self {
        let count = table.len() as f64;
        let mean_s = table.iter().sum::<f64>() / count;
        let variance = table.iter().map(|sample| (sample - mean_s).powi(2)).sum::<f64>() / count;
        let at = |share: f64| table[((count - 1.0) * share) as usize].max(LEAST_S);
        let least_tail = (TAIL_OF_ONE / samples.max(1.0).sqrt()).max(TAIL.0);
        // The slope of the upper quantiles on a logarithmic scale, as in Hill's estimator.
        let tail = ((at(0.95) / at(0.5)).ln() / 10f64.ln()).clamp(least_tail, TAIL.1);
        let beyond = 1.0 / (samples + 1.0);
        Self { mean_s, deviation_s: variance.sqrt(), samples, beyond, tail, borrowed: 0.0, table }
    }

    pub fn mean_s(&self) -> f64 {
        self.mean_s
    }

    pub fn deviation_s(&self) -> f64 {
        self.deviation_s
    }

    /// Relative standard error of the mean.
    pub fn uncertainty(&self) -> f64 {
        let (assumed, weight) = PRIOR_SPREAD;
        let spread = self.deviation_s / self.mean_s.max(LEAST_S);
        let variance = (self.samples * spread * spread + weight * assumed * assumed) / (self.samples + weight);
        // The spread itself is estimated: Student's distribution has `n / (n - 2)` of the variance.
        (variance / (self.samples - 2.0).max(1.0) + self.borrowed * self.borrowed).sqrt()
    }

    /// Draws by which factor the mean is off.
    pub fn draw_factor(&self, random: &mut RandomSource) -> f64 {
        (self.uncertainty() * random.normal()).exp()
    }

    /// True if they are those of other affinities.
    pub fn is_borrowed(&self) -> bool {
        self.borrowed > 0.0
    }

    /// Weight of the samples.
    pub fn samples(&self) -> f64 {
        self.samples
    }

    /// The duration that a job of this kind does not exceed with probability `share`.
    pub fn quantile(&self, share: f64) -> f64 {
        let last = self.table.len() - 1;
        let within = 1.0 - self.beyond;
        if share >= within {
            let rest = ((1.0 - share) / self.beyond).max(1e-6);
            return self.table[last].max(LEAST_S) * rest.powf(-self.tail);
        }
        let position = (share / within * self.table.len() as f64 - 0.5).clamp(0.0, last as f64);
        let (low, part) = (position.floor() as usize, position.fract());
        let high = (low + 1).min(last);
        self.table[low] * (1.0 - part) + self.table[high] * part
    }

    /// The share of the jobs that take at most this long.
    pub fn share_within(&self, seconds: f64) -> f64 {
        let last = self.table.len() - 1;
        let longest = self.table[last].max(LEAST_S);
        if seconds >= longest {
            return 1.0 - self.beyond * (seconds / longest).powf(-1.0 / self.tail);
        }
        let above = self.table.partition_point(|sample| *sample <= seconds);
        let part = match above.checked_sub(1).map(|low| (self.table[low], self.table[above])) {
            Some((low, high)) if high > low => (seconds - low) / (high - low),
            _ => 0.0,
        };
        ((above as f64 - 0.5 + part) / self.table.len() as f64).max(0.0) * (1.0 - self.beyond)
    }

    pub fn draw(&self, random: &mut RandomSource) -> f64 {
        self.quantile(random.unit())
    }

    /// Draws one of the samples. Of many jobs the mean counts, and its error is drawn by `draw_factor`: the tail would add
    /// to both.
    pub fn draw_sample(&self, random: &mut RandomSource) -> f64 {
        self.table[random.below(self.table.len())]
    }

    /// The remaining time that a job which has run for `elapsed_s` does not exceed with probability `share`.
    pub fn remaining(&self, elapsed_s: f64, share: f64) -> f64 {
        let ended = self.share_within(elapsed_s);
        (self.quantile(ended + (1.0 - ended) * share) - elapsed_s).max(LEAST_S)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_normal(count: usize, median_s: f64, seed: u64) -> Vec<f64> {
        let mut random = RandomSource::new(seed);
        (0..count).map(|_| median_s * (0.5 * random.normal()).exp()).collect()
    }

    fn history(samples: &[f64]) -> DurationHistory {
        let mut history = DurationHistory::default();
        samples.iter().for_each(|sample| history.add(*sample));
        history
    }

    /// Requirement S9.
    #[test]
    fn fewer_than_five_samples_give_no_distribution() {
        assert_eq!(history(&[1.0; 4]).durations(), None);
        assert!(history(&[1.0; 5]).durations().is_some());
    }

    /// Requirement S9.
    #[test]
    fn stationary_durations_rarely_restart_the_history() {
        let restarts = (0..20).filter(|seed| history(&log_normal(1_000, 10.0, *seed)).sketch.weight() < 500.0).count();
        assert!(restarts <= 2, "{restarts} of 20");
    }

    /// Requirement S9.
    #[test]
    fn a_change_by_a_factor_of_five_is_followed_within_twelve_samples() {
        let mut changing = history(&log_normal(1_000, 10.0, 1));
        log_normal(12, 50.0, 2).into_iter().for_each(|sample| changing.add(sample));
        let median = changing.durations().expect("there are samples").quantile(0.5);
        assert!((30.0..80.0).contains(&median), "{median}");
    }

    /// Requirement S9.
    #[test]
    fn few_samples_give_a_wide_tail_and_many_a_narrow_one() {
        let few = history(&log_normal(6, 10.0, 3)).durations().expect("there are samples");
        assert!(few.quantile(0.95) > few.table[TABLE - 1], "the next may be the longest");
        let many = history(&log_normal(900, 10.0, 3)).durations().expect("there are samples");
        assert!((many.quantile(0.9) / (10.0 * (0.5f64 * 1.2816).exp()) - 1.0).abs() < 0.1);
    }

    /// Requirement S9.
    #[test]
    fn durations_of_other_affinities_are_wider_than_each_and_narrower_the_more_agree() {
        let kin = |median_s: f64| history(&log_normal(200, median_s, 4)).durations().expect("there are samples");
        assert_eq!(Durations::borrow_from(&[]), None);
        let of_one = Durations::borrow_from(&[kin(10.0)]).expect("there is one");
        let of_three = Durations::borrow_from(&[kin(10.0), kin(10.0), kin(10.0)]).expect("there are three");
        let of_unlike = Durations::borrow_from(&[kin(1.0), kin(10.0), kin(100.0)]).expect("there are three");
        assert!(of_one.uncertainty() > kin(10.0).uncertainty() + 0.15, "{}", of_one.uncertainty());
        assert!(of_three.uncertainty() < of_one.uncertainty() - 0.05, "{}", of_three.uncertainty());
        assert!(of_unlike.uncertainty() > 1.0, "{}", of_unlike.uncertainty());
        assert!((of_three.quantile(0.5) / kin(10.0).quantile(0.5)).ln().abs() < 0.05);
    }

    /// Requirement S9.
    #[test]
    fn the_mean_of_few_samples_is_uncertain() {
        let of = |count: usize| history(&vec![10.0; count]).durations().expect("there are samples").uncertainty();
        assert!((0.04..0.12).contains(&of(5)), "{}", of(5));
        assert!(of(500) < 0.002, "{}", of(500));
    }

    /// Requirement S9.
    #[test]
    fn the_remaining_time_of_a_long_tail_grows_with_the_elapsed_time() {
        let mut random = RandomSource::new(5);
        let tail: Vec<f64> = (0..900).map(|_| random.unit().powf(-0.7)).collect();
        let durations = history(&tail).durations().expect("there are samples");
        assert!(durations.remaining(20.0, 0.5) > 3.0 * durations.remaining(2.0, 0.5));
        assert!(durations.remaining(1e6, 0.5) > 1e4, "beyond all samples the tail continues");
    }

    /// Requirement S9.
    #[test]
    fn share_within_is_the_inverse_of_quantile() {
        let durations = history(&log_normal(500, 10.0, 9)).durations().expect("there are samples");
        for share in [0.1, 0.5, 0.9, 0.99, 0.9995] {
            let back = durations.share_within(durations.quantile(share));
            assert!((back - share).abs() < 0.02, "{share}: {back}");
        }
    }
}
