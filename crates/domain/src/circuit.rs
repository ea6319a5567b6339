//! When a receiver is left alone: a circuit per endpoint, so that one dead receiver costs nobody else time (Q10).
//!
//! After some failures in a row the circuit opens: nothing is sent until a pause has passed, then one delivery at a time
//! tries the way. The first success closes it. While it is closed, a pace says how many are sent at once.

use crate::limits::{
    CIRCUIT_FAILURES, CIRCUIT_PAUSE_MAX_S, CIRCUIT_PAUSE_S, ENDPOINT_CONCURRENCY, ENDPOINT_CONCURRENCY_MAX,
};
use crate::time::Time;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Circuit {
    /// In a row, up to now.
    pub failures: u32,
    /// Nothing is sent before.
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

    /// How many deliveries one node may have under way there.
    pub fn concurrency(&self, pace: Pace) -> usize {
        if self.failures >= CIRCUIT_FAILURES { 1 } else { pace.0 }
    }
}

/// How many deliveries at once a receiver takes from one node, as far as that has found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace(usize);

impl Default for Pace {
    fn default() -> Self {
        Self(ENDPOINT_CONCURRENCY)
    }
}

impl Pace {
    /// One was delivered while there were as many as there may be.
    pub fn faster(self) -> Self {
        Self((self.0 + 1).min(ENDPOINT_CONCURRENCY_MAX))
    }

    /// The receiver was in trouble with one.
    pub fn slower(self) -> Self {
        Self((self.0 / 2).max(ENDPOINT_CONCURRENCY))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q10_a_circuit_opens_after_failures_in_a_row_and_waits_longer_each_time() {
        let now = Time::from_seconds(0);
        let mut circuit = Circuit::default();
        for _ in 1..CIRCUIT_FAILURES {
            circuit = circuit.failed(now);
            assert!(!circuit.is_open(now) && circuit.concurrency(Pace::default()) == ENDPOINT_CONCURRENCY);
        }
        let mut pauses = Vec::new();
        for _ in 0..40 {
            circuit = circuit.failed(now);
            assert!(circuit.is_open(now) && circuit.concurrency(Pace::default()) == 1, "one at a time tries the way");
            pauses.push(circuit.open_until.expect("open").ms_since(now) / 1_000);
        }
        assert_eq!((pauses[0], pauses[1], pauses[39]), (CIRCUIT_PAUSE_S, 2 * CIRCUIT_PAUSE_S, CIRCUIT_PAUSE_MAX_S));
        assert!(!circuit.is_open(now.plus_s(CIRCUIT_PAUSE_MAX_S)));
    }

    #[test]
    fn q10_a_pace_grows_one_by_one_and_is_halved_by_a_failure() {
        let at_once = |pace| Circuit::default().concurrency(pace);
        let grown = (0..200).fold(Pace::default(), |pace, _| pace.faster());
        assert_eq!((at_once(Pace::default().faster()), at_once(grown)), (5, ENDPOINT_CONCURRENCY_MAX));
        assert_eq!(at_once(grown.slower()), ENDPOINT_CONCURRENCY_MAX / 2);
        let failing = (0..200).fold(grown, |pace, _| pace.slower());
        assert_eq!(failing, Pace::default(), "a circuit sees to the rest");
    }
}
