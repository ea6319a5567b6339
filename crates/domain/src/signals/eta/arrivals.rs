//! The rate at which jobs arrive in a lane: an exponentially weighted mean over some minutes.

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

#[cfg(test)]
mod tests {
    use super::*;

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
