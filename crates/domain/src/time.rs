//! Time as the program stores it: microseconds since the Unix epoch, UTC.
//!
//! Both databases store microseconds, so a time that is read back equals the time that was written.

/// A point in time, in microseconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(i64);

impl Time {
    /// The end of the year 9999. It stands for a time that never comes, and both databases can store it.
    pub const NEVER: Self = Self::from_seconds(253_402_300_799);

    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(1_000))
    }

    pub const fn from_seconds(seconds: i64) -> Self {
        Self(seconds.saturating_mul(1_000_000))
    }

    pub const fn micros(self) -> i64 {
        self.0
    }

    pub const fn millis(self) -> i64 {
        self.0.div_euclid(1_000)
    }

    /// This time moved by `millis`, saturating at both ends.
    pub const fn plus_ms(self, millis: i64) -> Self {
        Self(self.0.saturating_add(millis.saturating_mul(1_000)))
    }

    pub const fn plus_s(self, seconds: i64) -> Self {
        Self(self.0.saturating_add(seconds.saturating_mul(1_000_000)))
    }

    /// Milliseconds from `earlier` to this time. Negative if `earlier` is later.
    pub const fn ms_since(self, earlier: Time) -> i64 {
        self.0.saturating_sub(earlier.0).div_euclid(1_000)
    }
}
