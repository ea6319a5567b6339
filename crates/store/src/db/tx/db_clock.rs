//! An estimate of the database clock: the last observation plus the time since then. Lazy transactions use it.
//!
//! The estimate is never later than the database clock, because an answer arrives after the server wrote it. It is
//! earlier by at most the duration of the fastest round trip of the last second. It is unique and monotonic, so that
//! jobs keep the order in which they arrive. It goes back only if the database clock was set back by more than a
//! second.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use domain::Time;

/// Maximum age of an observation.
const KEPT: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct DbClock {
    state: Mutex<Option<State>>,
}

struct State {
    database_now: Time,
    at: Instant,
    /// The last estimate.
    last: Time,
}

impl State {
    fn at(&self, moment: Instant) -> Time {
        let passed = moment.saturating_duration_since(self.at);
        Time::from_micros(self.database_now.micros() + i64::try_from(passed.as_micros()).unwrap_or(i64::MAX / 2))
    }
}

impl DbClock {
    /// Records the database time of an answer that has just arrived.
    pub(super) fn observe(&self, database_now: Time) {
        self.observe_at(database_now, Instant::now());
    }

    pub(super) fn now(&self) -> Option<Time> {
        self.estimate_at(Instant::now())
    }

    fn observe_at(&self, database_now: Time, at: Instant) {
        let mut state = self.state.lock().expect("lock poisoned");
        let last = match &*state {
            // The earlier observation had a faster round trip.
            Some(kept) if database_now <= kept.at(at) && at.saturating_duration_since(kept.at) < KEPT => return,
            Some(kept) => kept.last,
            None => Time::from_micros(database_now.micros() - 1),
        };
        *state = Some(State { database_now, at, last });
    }

    fn estimate_at(&self, moment: Instant) -> Option<Time> {
        let mut state = self.state.lock().expect("lock poisoned");
        let state = state.as_mut().filter(|state| moment.saturating_duration_since(state.at) < KEPT)?;
        let now = state.at(moment);
        let set_back = state.last.micros() - now.micros() > KEPT.as_micros() as i64;
        state.last = if set_back { now } else { now.max(Time::from_micros(state.last.micros() + 1)) };
        Some(state.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: i64) -> Time {
        Time::from_micros(micros)
    }

    #[test]
    fn the_clock_estimate_uses_the_fastest_response_and_never_goes_back() {
        let db_clock = DbClock::default();
        let start = Instant::now();
        let moment = |micros: u64| start + Duration::from_micros(micros);
        assert_eq!(db_clock.estimate_at(start), None, "no response was observed yet");
        db_clock.observe_at(at(1_000), moment(100));
        assert_eq!(db_clock.estimate_at(moment(150)), Some(at(1_050)));
        assert_eq!(db_clock.estimate_at(moment(150)), Some(at(1_051)), "no two are the same");
        // This answer took longer: the first observation gives a later estimate.
        db_clock.observe_at(at(1_060), moment(200));
        assert_eq!(db_clock.estimate_at(moment(210)), Some(at(1_110)));
        // This answer was faster.
        db_clock.observe_at(at(1_300), moment(300));
        assert_eq!(db_clock.estimate_at(moment(310)), Some(at(1_310)));
        assert_eq!(db_clock.estimate_at(moment(1_000_300)), None, "the last observation is too old");
        assert_eq!(db_clock.estimate_at(moment(900_000)), Some(at(901_000)));
        // After a second a slower answer counts too. The estimate still does not go back.
        db_clock.observe_at(at(1_000_900), moment(1_000_400));
        assert_eq!(db_clock.estimate_at(moment(1_000_500)), Some(at(1_001_000)));
        assert_eq!(db_clock.estimate_at(moment(2_000_399)), Some(at(2_000_899)));
        db_clock.observe_at(at(1_999_000), moment(2_000_400));
        assert_eq!(db_clock.estimate_at(moment(2_000_400)), Some(at(2_000_900)));
        assert_eq!(db_clock.estimate_at(moment(2_003_000)), Some(at(2_001_600)));
    }

    #[test]
    fn the_clock_estimate_follows_a_clock_set_back_within_a_second() {
        let db_clock = DbClock::default();
        let start = Instant::now();
        db_clock.observe_at(at(10_000_000), start);
        assert_eq!(db_clock.estimate_at(start), Some(at(10_000_000)));
        let deferred = start + KEPT;
        db_clock.observe_at(at(3_000_000), deferred);
        assert_eq!(db_clock.estimate_at(deferred), Some(at(3_000_000)));
    }
}
