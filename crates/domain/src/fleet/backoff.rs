//! Backoffs: a record per (subject, process) that keeps a process off a subject for a while. Written by a failure or
//! manually, ignored after its end, deleted by a success.

use crate::queue::job::JobError;
use crate::queue::retry::RetryPolicy;
use crate::time::Time;

/// Stands for all processes: a backoff of the whole subject.
pub const EVERY_PROCESS: &str = "*";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// `None`: until someone removes it.
    pub until: Option<Time>,
    /// Why, for people: the code and the message of the error, or the reason that an operator gave.
    pub cause: String,
    /// The writer: a user or a process.
    pub by: String,
    /// The delay after the last failure, without jitter. The next delay is computed from it.
    pub wait_s: Option<u64>,
    pub at: Time,
}

impl Backoff {
    /// The cause for callers that may not read error messages: the error code alone, if a failed attempt wrote it.
    pub fn public_cause(&self) -> &str {
        let is_failure = self.by.starts_with("worker ") || self.by.starts_with("job ");
        match self.cause.split_once(": ") {
            Some((code, _)) if is_failure => code,
            _ => &self.cause,
        }
    }

    pub fn holds(&self, now: Time) -> bool {
        self.until.is_none_or(|until| until > now)
    }

    /// The backoff after a failed attempt, given the previous one. An error that is not retryable locks the process out
    /// without end. A longer backoff that was set manually in the meantime is not shortened.
    pub fn after_failure(
        on_record: Option<&Backoff>,
        policy: &RetryPolicy,
        error: &JobError,
        by: &str,
        random_unit: f64,
        now: Time,
    ) -> Backoff {
        let wait_s = policy.next_wait_s(on_record.and_then(|backoff| backoff.wait_s));
        let wait_ms = (wait_s as i64).saturating_mul(1_000).saturating_add(policy.jitter_ms(wait_s, random_unit));
        let until = error.retryable.then(|| now.plus_ms(wait_ms));
        Self { until, cause: error.summary(), by: by.into(), wait_s: Some(wait_s), at: now }.not_shorter(on_record, now)
    }

    /// Returns `self`, unless the previous backoff lasts longer: then that one with the new `wait_s`.
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

    /// Consecutive failures, each at the end of the previous backoff.
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

    /// Requirement W5.
    #[test]
    fn subject_backoffs_follow_the_retry_vectors() {
        check(policy(None, None, None), None, &[1, 1, 1]);
        check(policy(Some(60), None, None), None, &[60, 60, 60]);
        check(policy(Some(60), Some(1.1), Some(120)), None, &[60, 66, 73, 81, 90, 99, 109, 120, 120]);
        check(policy(Some(60), Some(2.0), Some(120)), Some(2), &[4, 8, 16, 32, 64, 120]);
        check(policy(None, None, None), Some(60), &[60]);
        check(policy(Some(60), Some(1000.0), Some(120)), Some(u64::MAX), &[120]);
    }

    /// Requirement W5.
    #[test]
    fn a_non_retryable_failure_locks_the_subject_out_without_an_end() {
        let after = Backoff::after_failure(None, &policy(Some(60), None, None), &error(false), "w", 0.0, at(5));
        assert_eq!((after.until, after.holds(at(1_000_000))), (None, true));
    }

    /// Requirement W5.
    #[test]
    fn a_failure_does_not_shorten_a_lockout() {
        let by_hand = |until| Backoff { until, cause: "hands off".into(), by: "eve".into(), wait_s: None, at: at(0) };
        let fail = |before: &Backoff, now| {
            Backoff::after_failure(Some(before), &policy(Some(60), None, None), &error(true), "w", 0.0, at(now))
        };
        assert_eq!(fail(&by_hand(None), 10), Backoff { wait_s: Some(60), ..by_hand(None) });
        assert_eq!(fail(&by_hand(Some(at(500))), 10).until, Some(at(500)));
        assert_eq!(fail(&by_hand(Some(at(20))), 10).until, Some(at(70)));
        assert_eq!(fail(&by_hand(Some(at(500))), 600).cause, "boom: it broke", "what is past is ignored");
    }

    #[test]
    fn jitter_lengthens_the_wait_but_not_the_recorded_wait() {
        let policy = RetryPolicy::new(Some(60), None, None, Some(0.5)).expect("valid");
        let after = Backoff::after_failure(None, &policy, &error(true), "w", 1.0, at(0));
        assert_eq!((after.until, after.wait_s), (Some(at(90)), Some(60)));
    }
}
