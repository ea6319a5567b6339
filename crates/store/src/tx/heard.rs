//! The database's time without asking for it: what it told last, and what has passed since.
//!
//! It is not later than the database's own clock, for an answer arrives after it was written, and earlier by no more than
//! the quickest answer of the last second took. It is never the same twice and does not go back: jobs that come in one after
//! the other stay in that order. Only with a clock that was set back by more than a second it goes back too.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use domain::Time;

/// How long what the database told is gone by.
const KEPT: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Heard {
    state: Mutex<Option<State>>,
}

struct State {
    told: Time,
    at: Instant,
    /// What was given out last.
    last: Time,
}

impl State {
    fn at(&self, moment: Instant) -> Time {
        let passed = moment.saturating_duration_since(self.at);
        Time::from_micros(self.told.micros() + i64::try_from(passed.as_micros()).unwrap_or(i64::MAX / 2))
    }
}

impl Heard {
    /// The database told its time in an answer that has just arrived.
    pub(super) fn hear(&self, told: Time) {
        self.hear_at(told, Instant::now());
    }

    pub(super) fn now(&self) -> Option<Time> {
        self.now_at(Instant::now())
    }

    fn hear_at(&self, told: Time, at: Instant) {
        let mut state = self.state.lock().expect("nobody panics with the time in hand");
        let last = match &*state {
            // That answer was quicker than this one.
            Some(kept) if told <= kept.at(at) && at.saturating_duration_since(kept.at) < KEPT => return,
            Some(kept) => kept.last,
            None => Time::from_micros(told.micros() - 1),
        };
        *state = Some(State { told, at, last });
    }

    fn now_at(&self, moment: Instant) -> Option<Time> {
        let mut state = self.state.lock().expect("nobody panics with the time in hand");
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
    fn the_quickest_answer_counts_and_time_never_goes_back() {
        let heard = Heard::default();
        let start = Instant::now();
        let moment = |micros: u64| start + Duration::from_micros(micros);
        assert_eq!(heard.now_at(start), None, "nothing was told yet");
        heard.hear_at(at(1_000), moment(100));
        assert_eq!(heard.now_at(moment(150)), Some(at(1_050)));
        assert_eq!(heard.now_at(moment(150)), Some(at(1_051)), "no two are the same");
        // This answer was under way for longer: by the first it was later already.
        heard.hear_at(at(1_060), moment(200));
        assert_eq!(heard.now_at(moment(210)), Some(at(1_110)));
        // This one was quicker.
        heard.hear_at(at(1_300), moment(300));
        assert_eq!(heard.now_at(moment(310)), Some(at(1_310)));
        assert_eq!(heard.now_at(moment(1_000_300)), None, "what is old is asked for anew");
        assert_eq!(heard.now_at(moment(900_000)), Some(at(901_000)));
        // After a second a slower answer counts too; what was given out is not gone back behind.
        heard.hear_at(at(1_000_900), moment(1_000_400));
        assert_eq!(heard.now_at(moment(1_000_500)), Some(at(1_001_000)));
        assert_eq!(heard.now_at(moment(2_000_399)), Some(at(2_000_899)));
        heard.hear_at(at(1_999_000), moment(2_000_400));
        assert_eq!(heard.now_at(moment(2_000_400)), Some(at(2_000_900)));
        assert_eq!(heard.now_at(moment(2_003_000)), Some(at(2_001_600)));
    }

    #[test]
    fn a_clock_that_was_set_back_is_followed_within_a_second() {
        let heard = Heard::default();
        let start = Instant::now();
        heard.hear_at(at(10_000_000), start);
        assert_eq!(heard.now_at(start), Some(at(10_000_000)));
        let later = start + KEPT;
        heard.hear_at(at(3_000_000), later);
        assert_eq!(heard.now_at(later), Some(at(3_000_000)));
    }
}
