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

    /// Parses a time in RFC 3339, with fractional seconds and an offset. Digits beyond microseconds are ignored.
    pub fn from_rfc3339(text: &str) -> Option<Self> {
        let digits = |range: std::ops::Range<usize>| {
            let part = text.get(range)?;
            part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse::<i64>().ok()).flatten()
        };
        let is = |place: usize, allowed: &[u8]| text.as_bytes().get(place).is_some_and(|byte| allowed.contains(byte));
        let punctuated = is(4, b"-") && is(7, b"-") && is(10, b"Tt ") && is(13, b":") && is(16, b":");
        let (year, month, day) = (digits(0..4)?, digits(5..7)?, digits(8..10)?);
        let (hour, minute, second) = (digits(11..13)?, digits(14..16)?, digits(17..19)?);
        let within = (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60 && second <= 60;
        if !punctuated || !within {
            return None;
        }
        let mut rest = text.get(19..)?;
        let mut micros = 0;
        if let Some(fraction) = rest.strip_prefix('.') {
            let length = fraction.bytes().take_while(u8::is_ascii_digit).count();
            let six: String = fraction[..length].chars().chain("000000".chars()).take(6).collect();
            micros = if length == 0 { return None } else { six.parse().ok()? };
            rest = &fraction[length..];
        }
        let offset_minutes = match rest.as_bytes() {
            [b'Z' | b'z'] => 0,
            [sign @ (b'+' | b'-'), a, b, b':', c, d] if [a, b, c, d].iter().all(|byte| byte.is_ascii_digit()) => {
                let two = |tens: &u8, ones: &u8| i64::from(tens - b'0') * 10 + i64::from(ones - b'0');
                let minutes = two(a, b) * 60 + two(c, d);
                if *sign == b'-' { -minutes } else { minutes }
            }
            _ => return None,
        };
        // Days since 1970 in the proleptic Gregorian calendar: years start in March, so that leap days come last.
        let (year, month) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
        let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
        let seconds = ((days * 24 + hour) * 60 + minute - offset_minutes) * 60 + second;
        Some(Self::from_micros(seconds * 1_000_000 + micros))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed_as_in_rfc_3339() {
        let seconds = |text: &str| Time::from_rfc3339(text).map(|time| time.micros());
        assert_eq!(seconds("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(seconds("2000-02-29T12:00:00.25Z"), Some(951_825_600_250_000));
        assert_eq!(seconds("2026-11-19T15:00:00+01:00"), seconds("2026-11-19T14:00:00Z"));
        assert_eq!(seconds("1969-12-31T23:59:59.5Z"), Some(-500_000));
        for bad in [
            "",
            "2026-11-19",
            "2026-13-01T00:00:00Z",
            "2026-11-19T25:00:00Z",
            "2026-11-19T14:00:00",
            "a026-11-19T14:00:00Z",
            "2026-11-19T14:00:00.Z",
            "2026-11-19T14:00:00+1:00",
        ] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
    }
}
