//! Fuzz target for values of the command line.

use std::time::Duration;

/// Includes the source file of `app`: a binary crate cannot be a dependency.
#[path = "../../../app/src/cli/value.rs"]
mod value;

/// Parses durations, times and rates. Accepted values must be in range and equal to the same value in plain seconds.
pub fn command(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    // 20,000 years, the largest value that fits one unit.
    if let Ok(duration) = value::duration(&text)
        && duration <= Duration::from_secs(631_107_417_600)
    {
        let plain = format!("{}s {}ns", duration.as_secs(), duration.subsec_nanos());
        assert_eq!(value::duration(&plain), Ok(duration), "{text} is {plain}");
        assert!(value::past(&text).is_ok() || duration > Duration::from_secs(1_000 * 366 * 86_400));
    }
    if let Ok(time) = value::past(&text)
        && text.parse().ok() == Some(time)
    {
        assert_eq!(value::past(&time.to_string()), Ok(time));
    }
    if let Ok(rate) = value::rate(&text) {
        assert!(rate > 0.0 && rate.is_finite());
    }
}
