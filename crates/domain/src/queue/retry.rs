//! Retry policies: how long a job waits after a failure.
//!
//! The delay is stored as a whole number of seconds without jitter, and the next delay is computed from that number
//! alone. So a restart, a changed policy or another node continues from the last delay.

use crate::limits::RETRY_MAX_S;

/// The exponent is stored in millionths, so that 1.1 is exact: 60 s times 1.1 is 66 s, not 67 s.
const ONE: u64 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RetryPolicy {
    initial_s: u64,
    maximum_s: u64,
    exponent_millionths: u64,
    jitter_millionths: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RetryPolicyError {
    #[error("initial_s must be from 0 to {max}", max = crate::limits::WAIT_MAX_S)]
    Initial,
    #[error("maximum_s must be from 0 to {max}", max = crate::limits::WAIT_MAX_S)]
    Maximum,
    #[error("exponent must be from 1 to 1000")]
    Exponent,
    #[error("jitter must be from 0 to 1")]
    Jitter,
}

impl RetryPolicy {
    /// The policy `{}`: one second, constant.
    pub const NONE: RetryPolicy =
        RetryPolicy { initial_s: 1, maximum_s: RETRY_MAX_S as u64, exponent_millionths: ONE, jitter_millionths: 0 };

    /// Default of a queue without a policy: 5 s, doubling, at most 1 h, 10 % jitter.
    pub const QUEUE_DEFAULT: RetryPolicy =
        RetryPolicy { initial_s: 5, maximum_s: 3_600, exponent_millionths: 2 * ONE, jitter_millionths: ONE / 10 };

    /// Policy of delivery attempts: 5 s, tripling, at most 2 h, 20 % jitter.
    pub const DELIVERY: RetryPolicy =
        RetryPolicy { initial_s: 5, maximum_s: 7_200, exponent_millionths: 3 * ONE, jitter_millionths: ONE / 5 };

    /// Defaults for missing members: 1 s, exponent 1, no jitter, at most 24 h (or `initial_s`, if that is longer).
    pub fn new(
        initial_s: Option<u64>,
        maximum_s: Option<u64>,
        exponent: Option<f64>,
        jitter: Option<f64>,
    ) -> Result<Self, RetryPolicyError> {
        let longest = crate::limits::WAIT_MAX_S as u64;
        let initial_s = initial_s.unwrap_or(Self::NONE.initial_s);
        let maximum_s = maximum_s.unwrap_or(Self::NONE.maximum_s.max(initial_s));
        let exponent = exponent.unwrap_or(1.0);
        let jitter = jitter.unwrap_or(0.0);
        if initial_s > longest {
            return Err(RetryPolicyError::Initial);
        }
        if maximum_s > longest {
            return Err(RetryPolicyError::Maximum);
        }
        if !(1.0..=1_000.0).contains(&exponent) {
            return Err(RetryPolicyError::Exponent);
        }
        if !(0.0..=1.0).contains(&jitter) {
            return Err(RetryPolicyError::Jitter);
        }
        Ok(Self {
            initial_s,
            maximum_s,
            exponent_millionths: (exponent * ONE as f64).round() as u64,
            jitter_millionths: (jitter * ONE as f64).round() as u64,
        })
    }

    pub const fn initial_s(&self) -> u64 {
        self.initial_s
    }

    pub const fn maximum_s(&self) -> u64 {
        self.maximum_s
    }

    pub fn exponent(&self) -> f64 {
        self.exponent_millionths as f64 / ONE as f64
    }

    pub fn jitter(&self) -> f64 {
        self.jitter_millionths as f64 / ONE as f64
    }

    /// The delay after a failure, given the stored delay of the previous failure, if any.
    pub fn next_wait_s(&self, on_record_s: Option<u64>) -> u64 {
        let wait = match on_record_s {
            None => u128::from(self.initial_s),
            Some(before) => (u128::from(before) * u128::from(self.exponent_millionths)).div_ceil(u128::from(ONE)),
        };
        u64::try_from(wait).unwrap_or(u64::MAX).min(self.maximum_s)
    }

    /// Milliseconds of jitter to add to a delay: the share `random_unit` (0 to 1) of the maximum jitter.
    ///
    /// Jitter only lengthens a delay, so that no attempt starts early.
    pub fn jitter_ms(&self, wait_s: u64, random_unit: f64) -> i64 {
        (wait_s as f64 * 1_000.0 * self.jitter() * random_unit.clamp(0.0, 1.0)).floor() as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn policy(initial: Option<u64>, exponent: Option<f64>, maximum: Option<u64>) -> RetryPolicy {
        RetryPolicy::new(initial, maximum, exponent, None).expect("a valid policy")
    }

    fn check(policy: RetryPolicy, mut on_record: Option<u64>, waits: &[u64]) {
        let mut seen = Vec::new();
        for _ in waits {
            on_record = Some(policy.next_wait_s(on_record));
            seen.extend(on_record);
        }
        assert_eq!(seen, waits);
    }

    /// Requirement Q8.
    #[test]
    fn retry_waits_follow_the_test_vectors() {
        check(policy(None, None, None), None, &[1, 1, 1]);
        check(policy(Some(60), None, None), None, &[60, 60, 60]);
        check(policy(Some(60), Some(1.1), Some(120)), None, &[60, 66, 73, 81, 90, 99, 109, 120, 120]);
        check(policy(Some(60), Some(2.0), Some(120)), Some(2), &[4, 8, 16, 32, 64, 120]);
        check(policy(None, None, None), Some(60), &[60]);
    }

    /// Requirement Q8.
    #[test]
    fn a_wait_that_overflows_is_the_maximum() {
        check(policy(Some(60), Some(1000.0), Some(120)), Some(u64::MAX), &[120, 120]);
        check(policy(Some(60), Some(1000.0), None), Some(u64::MAX / 2), &[86_400]);
    }

    #[test]
    fn a_retry_policy_out_of_range_names_the_field() {
        assert_eq!(RetryPolicy::new(None, None, Some(0.5), None), Err(RetryPolicyError::Exponent));
        assert_eq!(RetryPolicy::new(None, None, Some(f64::NAN), None), Err(RetryPolicyError::Exponent));
        assert_eq!(RetryPolicy::new(None, None, None, Some(1.5)), Err(RetryPolicyError::Jitter));
        assert_eq!(RetryPolicy::new(Some(u64::MAX), None, None, None), Err(RetryPolicyError::Initial));
        assert_eq!(RetryPolicy::new(None, Some(u64::MAX), None, None), Err(RetryPolicyError::Maximum));
    }

    proptest! {
        #[test]
        fn a_wait_stays_between_the_previous_wait_and_the_maximum(
            initial in 0u64..1_000_000, exponent in 1.0f64..1000.0, maximum in 0u64..1_000_000, record in any::<u64>()
        ) {
            let policy = policy(Some(initial), Some(exponent), Some(maximum));
            let wait = policy.next_wait_s(Some(record));
            prop_assert!(wait <= maximum);
            prop_assert!(wait >= record.min(maximum));
        }

        #[test]
        fn jitter_is_never_negative_and_never_more_than_its_share(
            wait in 0u64..1_000_000, jitter in 0.0f64..=1.0, random_unit in 0.0f64..=1.0
        ) {
            let policy = RetryPolicy::new(None, None, None, Some(jitter)).expect("valid");
            let added = policy.jitter_ms(wait, random_unit);
            prop_assert!(added >= 0);
            prop_assert!(added as f64 <= wait as f64 * 1000.0 * (jitter + 1e-6));
        }
    }
}
