//! Time to first signal (TTFS): events reported by clients, hourly rollups updated with each event, and alerts on them.

pub mod alerts;
pub mod list;
pub mod prune;
pub mod record;
pub mod summary;

use domain::Time;

const HOUR_MICROS: i64 = 3_600_000_000;

/// Returns the start of the hour.
pub(crate) fn hour(at: Time) -> Time {
    Time::from_micros(at.micros().div_euclid(HOUR_MICROS) * HOUR_MICROS)
}

/// Returns the start of the day (UTC).
pub(crate) fn day(at: Time) -> Time {
    Time::from_micros(at.micros().div_euclid(24 * HOUR_MICROS) * 24 * HOUR_MICROS)
}
