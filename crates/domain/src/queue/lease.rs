//! Worker leases.
//!
//! A worker whose lease has expired by the database clock is dead for good, even before the sweep has processed it.
//! After a service outage every lease gets one more full term, from the moment the service returned.

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

    /// When the lease expires, given the time since which the service has been up without interruption.
    pub fn expires_at(&self, service_since: Time) -> Time {
        self.until.max(service_since.plus_ms(self.term_ms))
    }

    pub fn has_expired(&self, service_since: Time, now: Time) -> bool {
        self.expires_at(service_since) < now
    }

    /// True if a renewal is worth a write. Heartbeats always renew; claims and settles only after a tenth of the term.
    pub fn needs_renewal(&self, now: Time) -> bool {
        self.until.ms_since(now) < self.term_ms - self.term_ms / 10
    }
}

/// The start of the current service period, after a heartbeat at `now` that follows one at `last_beat`.
///
/// A clock that jumped forward is indistinguishable from an outage. It only lengthens leases.
pub fn service_since(since: Time, last_beat: Time, now: Time) -> Time {
    unless_silent_for(OUTAGE_MS, since, last_beat, now)
}

/// Same as [`service_since`], for the first heartbeat of a node that starts while other nodes may be running.
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
    fn without_an_outage_a_lease_expires_after_its_term() {
        let lease = Lease::granted(at(100), 30_000);
        assert!(!lease.has_expired(at(0), at(130)));
        assert!(lease.has_expired(at(0), at(131)));
    }

    /// Requirement Q7.
    #[test]
    fn after_an_outage_a_lease_gets_one_full_term() {
        let lease = Lease::granted(at(100), 30_000);
        assert!(!lease.has_expired(at(500), at(530)));
        assert!(lease.has_expired(at(500), at(531)));
    }

    #[test]
    fn an_outage_is_a_gap_between_heartbeats_of_all_nodes() {
        assert_eq!(service_since(at(10), at(100), at(101)), at(10));
        assert_eq!(service_since(at(10), at(100), at(104)), at(104));
        assert_eq!(service_since(at(10), at(100), at(5)), at(5), "a clock set back starts a new period");
    }

    #[test]
    fn a_starting_node_detects_an_outage_after_one_missed_heartbeat() {
        assert_eq!(service_since_at_start(at(10), at(100), at(101)), at(10));
        assert_eq!(service_since_at_start(at(10), at(100), at(102)), at(102));
    }
}
