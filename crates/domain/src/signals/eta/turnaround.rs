//! The time between the end of a job and the start of the next one of the same worker, while jobs wait: the outcome is
//! sent, and the next job is claimed. It is short, but a long line has as many turnarounds as jobs.

/// Maximum weight of the samples.
const WEIGHT_MAX: f64 = 100.0;
/// A longer time than this, and than this share of the run time, is no turnaround: a limit or a pause delayed the job, or
/// the end of an attempt between the two is unknown.
const LONGEST_S: f64 = 0.25;
const LONGEST_SHARE: f64 = 0.25;

/// The mean turnaround.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Turnaround {
    pub weight: f64,
    pub sum_s: f64,
}

impl Turnaround {
    /// Learns from a job that ran for `run_s`.
    pub fn observe(&mut self, turnaround_s: f64, run_s: f64) {
        if !(0.0..=LONGEST_S.max(LONGEST_SHARE * run_s)).contains(&turnaround_s) {
            return;
        }
        if self.weight >= WEIGHT_MAX {
            let fade = (WEIGHT_MAX - 1.0) / WEIGHT_MAX;
            *self = Self { weight: self.weight * fade, sum_s: self.sum_s * fade };
        }
        self.weight += 1.0;
        self.sum_s += turnaround_s;
    }

    /// That of several kinds of work together.
    pub fn with(self, other: Self) -> Self {
        Self { weight: self.weight + other.weight, sum_s: self.sum_s + other.sum_s }
    }

    pub fn mean_s(self) -> f64 {
        self.sum_s / self.weight.max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement S9.
    #[test]
    fn a_turnaround_is_learned_and_a_pause_is_not() {
        let mut turnaround = Turnaround::default();
        assert_eq!(turnaround.mean_s(), 0.0);
        (0..500).for_each(|_| turnaround.observe(0.1, 1.0));
        (0..500).for_each(|_| turnaround.observe(0.04, 1.0));
        assert!((turnaround.mean_s() - 0.04).abs() < 0.001, "{}", turnaround.mean_s());
        turnaround.observe(30.0, 1.0);
        turnaround.observe(-1.0, 1.0);
        assert!((turnaround.mean_s() - 0.04).abs() < 0.001, "{}", turnaround.mean_s());
    }
}
