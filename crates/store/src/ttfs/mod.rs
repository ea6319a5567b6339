//! Time to first signal: events as users saw them, and rollups that are kept with each event (S4, S5).

pub mod alerts;
pub mod prune;
pub mod record;
pub mod summary;

use domain::Time;

const HOUR_MICROS: i64 = 3_600_000_000;

pub(crate) fn hour(at: Time) -> Time {
    Time::from_micros(at.micros().div_euclid(HOUR_MICROS) * HOUR_MICROS)
}

pub(crate) fn day(at: Time) -> Time {
    Time::from_micros(at.micros().div_euclid(24 * HOUR_MICROS) * 24 * HOUR_MICROS)
}
