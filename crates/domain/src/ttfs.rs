//! Time to first signal: the targets, and percentiles from rounded times (S4, S5).

/// Half of all first signals are to be there by then, and 95 in 100 by the other.
pub const TARGET_P50_MS: i64 = 2_000;
pub const TARGET_P95_MS: i64 = 5_000;
/// Fewer of the signals than this told from what was kept is worth an alert.
pub const HIT_RATE_LEAST: f64 = 0.70;
pub const ERROR_RATE_MOST: f64 = 0.01;
/// More breaches of the P95 target than this in five minutes are worth an alert.
pub const BREACHES_MOST: i64 = 10;
pub const BREACHES_WITHIN_S: i64 = 300;
/// Shares of fewer events than this say nothing.
pub const EVENTS_LEAST: i64 = 20;

pub const SURFACES: [&str; 3] = ["ui", "cli", "ci"];
pub const EVENT_TYPES: [&str; 6] =
    ["signal.start", "signal.rendered", "signal.timeout", "signal.error", "signal.cache_hit", "signal.cold_start"];

/// A time rounded to three digits: within half a percent, so that an hour's times need few rows.
pub fn rounded(ms: i64) -> i64 {
    let mut scale = 1;
    while ms / scale >= 1_000 {
        scale *= 10;
    }
    (ms + scale / 2) / scale * scale
}

/// The smallest time that the given share of the events does not exceed. Times are in order, with how many had each.
pub fn percentile(times: &[(i64, i64)], share: f64) -> Option<i64> {
    let total: i64 = times.iter().map(|(_, count)| count).sum();
    let wanted = share * total as f64;
    let mut seen = 0;
    times.iter().find_map(|(ms, count)| {
        seen += count;
        (seen as f64 >= wanted).then_some(*ms)
    })
}

/// In percent, to two decimals; nothing without signals.
pub fn compliance_pct(total: i64, breaches: i64) -> Option<f64> {
    (total > 0).then(|| ((total - breaches) as f64 * 10_000.0 / total as f64).round() / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s5_times_keep_three_digits() {
        let told = [0, 7, 999, 1_000, 1_234, 1_235, 12_345, 999_999].map(rounded);
        assert_eq!(told, [0, 7, 999, 1_000, 1_230, 1_240, 12_300, 1_000_000]);
    }

    #[test]
    fn s5_percentiles_are_those_of_the_nearest_rank() {
        let times = [(100, 50), (200, 45), (900, 5)];
        assert_eq!([0.5, 0.95, 0.99].map(|share| percentile(&times, share)), [Some(100), Some(200), Some(900)]);
        assert_eq!(percentile(&[], 0.5), None);
    }

    #[test]
    fn s5_compliance_has_two_decimals() {
        assert_eq!(compliance_pct(3, 1), Some(66.67));
        assert_eq!(compliance_pct(0, 0), None);
    }
}
