//! Durations, times and rates as they are written on the command line. Used by `#[arg(value_parser = …)]`, and looked at by
//! the fuzzer, for which this file stands by itself.

use std::time::Duration;

use jiff::{SignedDuration, Span, SpanRelativeTo, Timestamp};

/// `90s`, `5m`, `1h30m`, `2d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration such as 30s, 5m, 2h or 1d");
    let span: Span = text.parse().map_err(|_| wrong())?;
    let duration = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| wrong())?;
    Duration::try_from(duration).map_err(|_| wrong())
}

/// A time, or how long ago it was.
pub(crate) fn past(text: &str) -> Result<Timestamp, String> {
    if let Ok(time) = text.parse() {
        return Ok(time);
    }
    let ago =
        duration(text).map_err(|_| format!("{text:?} is neither a time in RFC 3339 nor a duration such as 2h"))?;
    let ago = SignedDuration::try_from(ago).map_err(|_| format!("{text:?} is too long ago"))?;
    Timestamp::now().checked_sub(ago).map_err(|_| format!("{text:?} is too long ago"))
}

/// JSON has no other numbers: `nan` and `inf` would travel as null, which is no setting at all.
pub(crate) fn finite(text: &str) -> Result<f64, String> {
    text.parse::<f64>().ok().filter(|number| number.is_finite()).ok_or_else(|| "must be a number".into())
}

/// A rate of nothing would be a lock, which a quota is not.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    finite(text).ok().filter(|rate| *rate > 0.0).ok_or_else(|| "must be a number above 0".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_people_write_them() {
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5_400)));
        assert_eq!(duration("2d"), Ok(Duration::from_secs(172_800)));
        assert!(duration("-5m").is_err());
        assert!(duration("soon").is_err());
    }

    #[test]
    fn numbers_are_finite() {
        assert_eq!((finite("1.5"), finite("-2")), (Ok(1.5), Ok(-2.0)));
        for bad in ["nan", "NaN", "inf", "-infinity", "1e999", "some"] {
            assert!(finite(bad).is_err() && rate(bad).is_err(), "{bad}");
        }
        assert!(rate("0").is_err());
    }
}
