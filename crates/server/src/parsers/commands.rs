//! Values of the command line.

use std::time::Duration;

/// The program's own file: a binary has no library that could be asked.
#[path = "../../../app/src/cli/value.rs"]
mod value;

/// Durations, times and rates as people write them: within bounds, and the same when written in plain seconds.
pub fn command(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    // Twenty thousand years, which is the most that can be written in one unit.
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
