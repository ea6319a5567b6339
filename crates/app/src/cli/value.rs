//! Parsers for durations, times and rates on the command line, used by `#[arg(value_parser = …)]`. The fuzzer includes
//! this file on its own, so it must not depend on other modules of the crate.

use std::time::Duration;

use jiff::{SignedDuration, Span, SpanRelativeTo, Timestamp};

/// `90s`, `5m`, `1h30m`, `2d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration such as 30s, 5m, 2h or 1d");
    let span: Span = text.parse().map_err(|_| wrong())?;
    let duration = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| wrong())?;
    Duration::try_from(duration).map_err(|_| wrong())
}

/// Parses a time, or a duration before now.
pub(crate) fn past(text: &str) -> Result<Timestamp, String> {
    if let Ok(time) = text.parse() {
        return Ok(time);
    }
    let ago =
        duration(text).map_err(|_| format!("{text:?} is neither a time in RFC 3339 nor a duration such as 2h"))?;
    let ago = SignedDuration::try_from(ago).map_err(|_| format!("{text:?} is too long ago"))?;
    Timestamp::now().checked_sub(ago).map_err(|_| format!("{text:?} is too long ago"))
}

/// Parses a finite number. JSON has no others: `nan` and `inf` would be sent as null.
pub(crate) fn finite(text: &str) -> Result<f64, String> {
    text.parse::<f64>().ok().filter(|number| number.is_finite()).ok_or_else(|| "must be a number".into())
}

/// Parses a rate above 0. A rate of 0 would block everything, which is not the purpose of a quota.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    finite(text).ok().filter(|rate| *rate > 0.0).ok_or_else(|| "must be a number above 0".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_parse_in_human_units() {
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
