//! Parsers for durations, times and rates on the command line, used by `#[arg(value_parser = …)]`. The fuzzer includes
//! this file on its own, so it must not depend on other modules of the crate.

use std::time::Duration;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Span, SpanRelativeTo, Timestamp};

/// `90s`, `5m`, `1h30m`, `2d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    if text.parse::<f64>().is_ok() {
        return Err(format!("{text:?} has no unit; write {text}s, {text}m, {text}h or {text}d"));
    }
    let wrong = || format!("{text:?} is not a duration such as 30s, 5m, 2h or 1d");
    let span: Span = text.parse().map_err(|_| wrong())?;
    let duration = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| wrong())?;
    Duration::try_from(duration).map_err(|_| wrong())
}

/// Whole seconds, as a number or as a duration: `300` or `5m`.
pub(crate) fn seconds(text: &str) -> Result<i64, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(seconds);
    }
    let duration =
        duration(text).map_err(|_| format!("{text:?} is neither a number of seconds nor a duration like 5m"))?;
    if duration.subsec_nanos() != 0 {
        return Err(format!("{text:?} is not a whole number of seconds"));
    }
    i64::try_from(duration.as_secs()).map_err(|_| format!("{text:?} is too long"))
}

/// Whole seconds that are not negative.
pub(crate) fn positive_seconds(text: &str) -> Result<u64, String> {
    u64::try_from(seconds(text)?).map_err(|_| format!("{text:?} is negative"))
}

/// Parses a time: RFC 3339, or the local time of this machine.
pub(crate) fn time(text: &str) -> Result<Timestamp, String> {
    time_in(text, TimeZone::system())
}

fn time_in(text: &str, zone: TimeZone) -> Result<Timestamp, String> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time);
    }
    let wrong =
        || format!("{text:?} is not a time; use 2026-12-01T10:00:00Z, or '2026-12-01 10:00' for the local time");
    let local: DateTime = text.parse().map_err(|_| wrong())?;
    Ok(local.to_zoned(zone).map_err(|_| wrong())?.timestamp())
}

/// Parses a time, or a duration before now.
pub(crate) fn past(text: &str) -> Result<Timestamp, String> {
    if let Ok(time) = time(text) {
        return Ok(time);
    }
    let ago = duration(text)
        .map_err(|_| format!("{text:?} is neither a time such as '2026-12-01 10:00' nor a duration such as 2h"))?;
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
        assert!(duration("30").unwrap_err().contains("write 30s"));
    }

    #[test]
    fn seconds_are_a_number_or_a_duration() {
        assert_eq!([seconds("300"), seconds("5m"), seconds("-1")], [Ok(300), Ok(300), Ok(-1)]);
        assert!(seconds("1500ms").unwrap_err().contains("whole"));
        assert!(seconds("soon").unwrap_err().contains("a duration like 5m"));
        assert!(positive_seconds("-1").unwrap_err().contains("negative"));
    }

    #[test]
    fn a_time_without_a_zone_is_local() {
        let zone = TimeZone::get("Europe/Berlin").expect("the bundled database has the zone");
        let parsed = |text: &str| time_in(text, zone.clone()).map(|time| time.to_string());
        assert_eq!(parsed("2026-12-01 10:00").as_deref(), Ok("2026-12-01T09:00:00Z"));
        assert_eq!(parsed("2026-07-01T10:00:30").as_deref(), Ok("2026-07-01T08:00:30Z"));
        assert_eq!(parsed("2026-12-01T10:00:00Z").as_deref(), Ok("2026-12-01T10:00:00Z"));
        assert_eq!(parsed("2026-12-01T10:00:00+05:00").as_deref(), Ok("2026-12-01T05:00:00Z"));
        assert!(parsed("tomorrow").unwrap_err().contains("'2026-12-01 10:00'"));
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
