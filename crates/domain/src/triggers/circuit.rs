//! Circuit breaker and adaptive concurrency per webhook endpoint, so that a failing receiver does not delay the others.
//!
//! After consecutive failures the circuit opens: nothing is sent during a pause, then one delivery at a time probes the
//! receiver. The first success closes the circuit. While it is closed, the concurrency limit adapts to the receiver.

use crate::limits::{
    CIRCUIT_FAILURES, CIRCUIT_PAUSE_MAX_S, CIRCUIT_PAUSE_S, ENDPOINT_CONCURRENCY, ENDPOINT_CONCURRENCY_MAX,
};
use crate::time::Time;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Circuit {
    /// Consecutive failures.
    pub failures: u32,
    /// Nothing is sent before this time.
    pub open_until: Option<Time>,
}

impl Circuit {
    pub fn failed(self, now: Time) -> Self {
        let failures = self.failures.saturating_add(1);
        let over = failures.checked_sub(CIRCUIT_FAILURES);
        let pause = |over: u32| CIRCUIT_PAUSE_S.saturating_mul(1 << over.min(16)).min(CIRCUIT_PAUSE_MAX_S);
        Self { failures, open_until: over.map(|over| now.plus_s(pause(over))) }
    }

    pub fn is_open(&self, now: Time) -> bool {
        self.open_until.is_some_and(|until| now < until)
    }

    /// The number of deliveries that one node may have in flight to the endpoint.
    pub fn concurrency(&self, limit: ConcurrencyLimit) -> usize {
        if self.failures >= CIRCUIT_FAILURES { 1 } else { limit.0 }
    }
}

/// The number of concurrent deliveries from one node to one endpoint: additive increase, multiplicative decrease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConcurrencyLimit(usize);

impl Default for ConcurrencyLimit {
    fn default() -> Self {
        Self(ENDPOINT_CONCURRENCY)
    }
}

impl ConcurrencyLimit {
    /// After a successful delivery at the limit.
    pub fn increased(self) -> Self {
        Self((self.0 + 1).min(ENDPOINT_CONCURRENCY_MAX))
    }

    /// After a failed delivery.
    pub fn halved(self) -> Self {
        Self((self.0 / 2).max(ENDPOINT_CONCURRENCY))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement Q10.
    #[test]
    fn a_circuit_opens_after_consecutive_failures_with_growing_pauses() {
        let now = Time::from_seconds(0);
        let mut circuit = Circuit::default();
        for _ in 1..CIRCUIT_FAILURES {
            circuit = circuit.failed(now);
            assert!(!circuit.is_open(now) && circuit.concurrency(ConcurrencyLimit::default()) == ENDPOINT_CONCURRENCY);
        }
        let mut pauses = Vec::new();
        for _ in 0..40 {
            circuit = circuit.failed(now);
            assert!(
                circuit.is_open(now) && circuit.concurrency(ConcurrencyLimit::default()) == 1,
                "one at a time tries the way"
            );
            pauses.push(circuit.open_until.expect("open").ms_since(now) / 1_000);
        }
        assert_eq!((pauses[0], pauses[1], pauses[39]), (CIRCUIT_PAUSE_S, 2 * CIRCUIT_PAUSE_S, CIRCUIT_PAUSE_MAX_S));
        assert!(!circuit.is_open(now.plus_s(CIRCUIT_PAUSE_MAX_S)));
    }

    /// Requirement Q10.
    #[test]
    fn the_concurrency_limit_grows_by_one_and_halves_on_failure() {
        let concurrency = |limit| Circuit::default().concurrency(limit);
        let grown = (0..200).fold(ConcurrencyLimit::default(), |limit, _| limit.increased());
        assert_eq!(
            (concurrency(ConcurrencyLimit::default().increased()), concurrency(grown)),
            (5, ENDPOINT_CONCURRENCY_MAX)
        );
        assert_eq!(concurrency(grown.halved()), ENDPOINT_CONCURRENCY_MAX / 2);
        let failing = (0..200).fold(grown, |limit, _| limit.halved());
        assert_eq!(failing, ConcurrencyLimit::default(), "a circuit sees to the rest");
    }
}
