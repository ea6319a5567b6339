//! What keeps a process off a subject for a while (W5): one record per (subject, process), written by a failure or by
//! hand, ignored once past, cleared by success.

use crate::job::JobError;
use crate::retry::RetryPolicy;
use crate::time::Time;

/// The process that stands for every process: a backoff of the whole subject.
pub const EVERY_PROCESS: &str = "*";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// `None`: without end, until someone removes it.
    pub until: Option<Time>,
    pub cause: String,
    /// Who or what wrote it.
    pub by: String,
    /// The wait that the last failure asked for, without jitter; the next one is computed from it.
    pub wait_s: Option<u64>,
    pub at: Time,
}

impl Backoff {
    pub fn holds(&self, now: Time) -> bool {
        self.until.is_none_or(|until| until > now)
    }

    /// What an attempt's failure leaves behind, given what was on record. A failure that nothing can repair locks the
    /// process out without end. A longer backoff that someone set by hand in the meantime is not shortened.
    pub fn after_failure(
        on_record: Option<&Backoff>,
        policy: &RetryPolicy,
        error: &JobError,
        by: &str,
        dice: f64,
        now: Time,
    ) -> Backoff {
        let wait_s = policy.next_wait_s(on_record.and_then(|backoff| backoff.wait_s));
        let wait_ms = (wait_s as i64).saturating_mul(1_000).saturating_add(policy.jitter_ms(wait_s, dice));
        let until = error.retryable.then(|| now.plus_ms(wait_ms));
        Self { until, cause: error.code.clone(), by: by.into(), wait_s: Some(wait_s), at: now }
            .not_shorter(on_record, now)
    }

    /// Itself, unless what is on record holds for longer: that stays then, and only the wait is noted.
    pub fn not_shorter(self, on_record: Option<&Backoff>, now: Time) -> Backoff {
        match on_record.filter(|before| before.holds(now)) {
            Some(before) if before.outlasts(&self) => Self { wait_s: self.wait_s, ..before.clone() },
            _ => self,
        }
    }

    fn outlasts(&self, other: &Backoff) -> bool {
        match (self.until, other.until) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(mine), Some(other)) => mine > other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(retryable: bool) -> JobError {
        JobError { code: "boom".into(), message: "it broke".into(), retryable }
    }

    fn at(seconds: i64) -> Time {
        Time::from_seconds(seconds)
    }

    fn policy(initial: Option<u64>, exponent: Option<f64>, maximum: Option<u64>) -> RetryPolicy {
        RetryPolicy::new(initial, maximum, exponent, None).expect("a valid policy")
    }

    /// Failures one after the other, each at the moment the backoff before it has passed.
    fn check(policy: RetryPolicy, on_record_s: Option<u64>, waits: &[i64]) {
        let mut now = at(1_000);
        let first = |wait_s| Backoff { until: Some(at(0)), cause: "x".into(), by: "x".into(), wait_s, at: at(0) };
        let mut before = on_record_s.map(|wait_s| first(Some(wait_s)));
        for wait in waits {
            let after = Backoff::after_failure(before.as_ref(), &policy, &error(true), "w", 0.5, now);
            assert_eq!(after.until, Some(now.plus_s(*wait)));
            now = after.until.expect("it passes");
            before = Some(after);
        }
    }

    #[test]
    fn w5_backoffs_follow_the_vectors_of_q8() {
        check(policy(None, None, None), None, &[1, 1, 1]);
        check(policy(Some(60), None, None), None, &[60, 60, 60]);
        check(policy(Some(60), Some(1.1), Some(120)), None, &[60, 66, 73, 81, 90, 99, 109, 120, 120]);
        check(policy(Some(60), Some(2.0), Some(120)), Some(2), &[4, 8, 16, 32, 64, 120]);
        check(policy(None, None, None), Some(60), &[60]);
        check(policy(Some(60), Some(1000.0), Some(120)), Some(u64::MAX), &[120]);
    }

    #[test]
    fn w5_what_cannot_be_repaired_locks_out_without_end() {
        let after = Backoff::after_failure(None, &policy(Some(60), None, None), &error(false), "w", 0.0, at(5));
        assert_eq!((after.until, after.holds(at(1_000_000))), (None, true));
    }

    #[test]
    fn w5_a_failure_does_not_shorten_a_lockout() {
        let by_hand = |until| Backoff { until, cause: "hands off".into(), by: "eve".into(), wait_s: None, at: at(0) };
        let fail = |before: &Backoff, now| {
            Backoff::after_failure(Some(before), &policy(Some(60), None, None), &error(true), "w", 0.0, at(now))
        };
        assert_eq!(fail(&by_hand(None), 10), Backoff { wait_s: Some(60), ..by_hand(None) });
        assert_eq!(fail(&by_hand(Some(at(500))), 10).until, Some(at(500)));
        assert_eq!(fail(&by_hand(Some(at(20))), 10).until, Some(at(70)));
        assert_eq!(fail(&by_hand(Some(at(500))), 600).cause, "boom", "what is past is ignored");
    }

    #[test]
    fn jitter_lengthens_the_wait_and_not_the_record() {
        let policy = RetryPolicy::new(Some(60), None, None, Some(0.5)).expect("valid");
        let after = Backoff::after_failure(None, &policy, &error(true), "w", 1.0, at(0));
        assert_eq!((after.until, after.wait_s), (Some(at(90)), Some(60)));
    }
}
