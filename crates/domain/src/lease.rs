//! When a worker's lease has passed.
//!
//! A worker whose lease has passed by the database's clock is dead for good, swept or not. But after an outage in which
//! no node could serve, every lease gets one more full term from the moment service returned.

use crate::limits::{OUTAGE_AT_START_MS, OUTAGE_MS};
use crate::time::Time;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    pub until: Time,
    pub term_ms: i64,
}

impl Lease {
    pub fn granted(now: Time, term_ms: i64) -> Self {
        Self { until: now.plus_ms(term_ms), term_ms }
    }

    /// The moment the lease passes, given since when service has been up without a gap.
    pub fn passes_at(&self, service_since: Time) -> Time {
        self.until.max(service_since.plus_ms(self.term_ms))
    }

    pub fn has_passed(&self, service_since: Time, now: Time) -> bool {
        self.passes_at(service_since) < now
    }

    /// Whether a renewal is worth a write: heartbeats always are, claims and settles only past a tenth of the term.
    pub fn wants_renewal(&self, now: Time) -> bool {
        self.until.ms_since(now) < self.term_ms - self.term_ms / 10
    }
}

/// Since when service has been up, after one more beat at `now` when the last was at `last_beat`.
///
/// A clock that jumped forward looks like an outage and is treated as one: it only lengthens leases.
pub fn service_since(since: Time, last_beat: Time, now: Time) -> Time {
    unless_silent_for(OUTAGE_MS, since, last_beat, now)
}

/// The same for the first beat of a node that starts beside others.
pub fn service_since_at_start(since: Time, last_beat: Time, now: Time) -> Time {
    unless_silent_for(OUTAGE_AT_START_MS, since, last_beat, now)
}

fn unless_silent_for(outage_ms: i64, since: Time, last_beat: Time, now: Time) -> Time {
    if now.ms_since(last_beat) > outage_ms || now < since { now } else { since }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Time {
        Time::from_seconds(seconds)
    }

    #[test]
    fn a_lease_passes_by_the_clock_when_service_was_up() {
        let lease = Lease::granted(at(100), 30_000);
        assert!(!lease.has_passed(at(0), at(130)));
        assert!(lease.has_passed(at(0), at(131)));
    }

    #[test]
    fn q7_after_an_outage_a_lease_gets_one_full_term() {
        let lease = Lease::granted(at(100), 30_000);
        assert!(!lease.has_passed(at(500), at(530)));
        assert!(lease.has_passed(at(500), at(531)));
    }

    #[test]
    fn silence_of_all_nodes_is_an_outage_and_a_beat_in_time_is_not() {
        assert_eq!(service_since(at(10), at(100), at(101)), at(10));
        assert_eq!(service_since(at(10), at(100), at(104)), at(104));
        assert_eq!(service_since(at(10), at(100), at(5)), at(5), "a clock set back starts anew");
    }

    #[test]
    fn a_node_that_starts_finds_an_outage_in_one_beat_that_is_missing() {
        assert_eq!(service_since_at_start(at(10), at(100), at(101)), at(10));
        assert_eq!(service_since_at_start(at(10), at(100), at(102)), at(102));
    }
}
