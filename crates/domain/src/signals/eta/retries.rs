//! The share of attempts that are retried, per kind of work and number of the attempt.
//!
//! A kind fails in more than one way: a flaky job fails once and succeeds, a broken one fails every time. So the shares
//! differ by attempt, and a job on its second attempt is more likely to need a third.

use crate::queue::retry::RetryPolicy;

/// Attempts that are counted separately. Later ones count as the last of them.
pub const ATTEMPTS: usize = 8;
const WEIGHT_MAX: f64 = 500.0;
/// Weight of the next earlier attempt's share, in attempts.
const PRIOR: f64 = 2.0;

/// Weights of the attempts that ended, and of those that were followed by another, by number of the attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AttemptShares {
    pub ended: [f64; ATTEMPTS],
    pub retried: [f64; ATTEMPTS],
}

fn place(attempt: u32) -> usize {
    (attempt.max(1) as usize - 1).min(ATTEMPTS - 1)
}

impl AttemptShares {
    /// Learns from a job that ended on this attempt. All earlier ones were retried. The last permitted attempt tells
    /// nothing, because no attempt could follow it.
    pub fn observe(&mut self, attempt: u32, was_last_permitted: bool) {
        for earlier in 1..attempt.min(1_000) {
            self.count(earlier, true);
        }
        if !was_last_permitted {
            self.count(attempt, false);
        }
    }

    fn count(&mut self, attempt: u32, was_retried: bool) {
        let at = place(attempt);
        if self.ended[at] >= WEIGHT_MAX {
            let fade = (WEIGHT_MAX - 1.0) / WEIGHT_MAX;
            self.ended[at] *= fade;
            self.retried[at] *= fade;
        }
        self.ended[at] += 1.0;
        self.retried[at] += f64::from(was_retried);
    }

    /// The probability that this attempt is followed by another, if one is permitted.
    pub fn retried_after(&self, attempt: u32) -> f64 {
        let mut share = 0.0;
        for at in 0..=place(attempt) {
            let prior = if at == 0 { 0.0 } else { PRIOR };
            share = (self.retried[at] + prior * share) / (self.ended[at] + prior).max(1.0);
        }
        share
    }
}

/// What may follow the current attempt of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryForecast {
    /// The number of the current or next attempt, from 1.
    pub attempt: u32,
    pub max_attempts: u32,
    pub shares: AttemptShares,
    pub policy: RetryPolicy,
    /// The stored delay of the last failure.
    pub last_wait_s: Option<u64>,
}

impl RetryForecast {
    /// A job that is never retried.
    pub const NONE: Self = Self {
        attempt: 1,
        max_attempts: 1,
        shares: AttemptShares { ended: [0.0; ATTEMPTS], retried: [0.0; ATTEMPTS] },
        policy: RetryPolicy::NONE,
        last_wait_s: None,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement S9.
    #[test]
    fn the_share_of_retried_attempts_depends_on_the_number_of_the_attempt() {
        let mut shares = AttemptShares::default();
        assert_eq!(shares.retried_after(1), 0.0);
        // A third of the jobs fails on each of its three attempts.
        (0..300).for_each(|number| if number % 3 == 0 { shares.observe(3, true) } else { shares.observe(1, false) });
        assert!((shares.retried_after(1) - 1.0 / 3.0).abs() < 0.01);
        assert!(shares.retried_after(2) > 0.95);
    }
}
