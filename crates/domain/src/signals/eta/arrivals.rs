//! The rate at which jobs arrive in a lane: an exponentially weighted mean over some minutes, and how many arrive at once.
//!
//! A backlog that is pushed at once is one arrival of many jobs. It is no evidence that more will come.

/// Time constant of the mean.
pub const ARRIVALS_S: f64 = 300.0;

/// Arrivals per second, at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ArrivalRate {
    pub per_s: f64,
    /// The moment, in seconds since any fixed time.
    pub at_s: f64,
}

impl ArrivalRate {
    /// Counts jobs that arrived `age_s` ago. A lane learns of an arrival when the job ends, so arrivals come late; until
    /// then `of_unfinished` counts them.
    pub fn observe(&mut self, now_s: f64, age_s: f64, jobs: f64) {
        *self = Self { per_s: self.at(now_s) + jobs * share(age_s), at_s: now_s.max(self.at_s) };
    }

    pub fn at(&self, now_s: f64) -> f64 {
        self.per_s * (-(now_s - self.at_s).max(0.0) / ARRIVALS_S).exp()
    }
}

/// What jobs that have not ended add to the rate: `ages_s` since each arrived.
pub fn of_unfinished(ages_s: impl Iterator<Item = f64>) -> f64 {
    ages_s.map(share).sum()
}

fn share(age_s: f64) -> f64 {
    (-age_s.max(0.0) / ARRIVALS_S).exp() / ARRIVALS_S
}

/// Jobs that arrive within this time of each other arrive together.
pub const TOGETHER_MS: i64 = 50;
/// Maximum weight of the counted jobs.
const JOBS_MAX: f64 = 500.0;

/// How many jobs arrive together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BurstSize {
    pub bursts: f64,
    pub jobs: f64,
}

impl BurstSize {
    /// Counts a job. Jobs of one burst come one after the other.
    pub fn observe(&mut self, begins_burst: bool) {
        if self.jobs >= JOBS_MAX && begins_burst {
            (self.bursts, self.jobs) = (self.bursts / 2.0, self.jobs / 2.0);
        }
        self.jobs += 1.0;
        self.bursts += f64::from(begins_burst || self.bursts == 0.0);
    }

    /// The mean size, with the jobs that have not ended. `ages_s` is sorted. They may belong to a burst with jobs that
    /// have ended.
    pub fn with_unfinished(&self, ages_s: &[f64]) -> f64 {
        let starts = ages_s.windows(2).filter(|pair| (pair[0] - pair[1]).abs() > TOGETHER_MS as f64 / 1e3).count();
        let bursts = self.bursts.max(if ages_s.is_empty() { 0.0 } else { starts as f64 + 1.0 });
        ((self.jobs + ages_s.len() as f64) / bursts.max(1.0)).max(1.0)
    }
}

/// Bursts of `size` jobs at a rate.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Arrivals {
    pub bursts_per_s: f64,
    pub size: f64,
}

impl Arrivals {
    /// From the rate of the jobs. A single burst within the time of the mean is no evidence of another.
    pub fn of(jobs_per_s: f64, size: f64) -> Self {
        let bursts_per_s = jobs_per_s / size.max(1.0);
        let further = (bursts_per_s * ARRIVALS_S - 1.0).max(0.0);
        Self { bursts_per_s: bursts_per_s * (1.0 - (-further).exp()), size: size.max(1.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement S9.
    #[test]
    fn a_backlog_is_one_burst_and_single_jobs_are_many() {
        let mut backlog = BurstSize::default();
        (0..20).for_each(|number| backlog.observe(number == 0));
        let rate = of_unfinished([5.0; 10].into_iter()) + 20.0 * share(5.0);
        assert_eq!(backlog.with_unfinished(&[5.0; 10]), 30.0);
        assert!(Arrivals::of(rate, 30.0).bursts_per_s < 1e-4, "{:?}", Arrivals::of(rate, 30.0));
        let mut single = BurstSize::default();
        (0..2_000).for_each(|_| single.observe(true));
        assert!((single.with_unfinished(&[9.0, 5.0, 1.0]) - 1.0).abs() < 0.02);
        assert!((Arrivals::of(0.1, 1.0).bursts_per_s - 0.1).abs() < 1e-6);
    }

    #[test]
    fn regular_arrivals_give_their_rate_however_late_they_are_learned() {
        let mut rate = ArrivalRate::default();
        for number in 0..1_000 {
            let arrived_s = f64::from(number) * 4.0;
            rate.observe(arrived_s + 40.0, 40.0, 1.0);
        }
        let now_s = 4_000.0;
        // Nine jobs have not ended.
        let unfinished = of_unfinished((1..=9).map(|number| f64::from(number) * 4.0));
        assert!(((rate.at(now_s) + unfinished) / 0.25 - 1.0).abs() < 0.05, "{}", rate.at(now_s) + unfinished);
    }
}
