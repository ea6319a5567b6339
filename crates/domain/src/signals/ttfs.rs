//! Time to first signal: targets, alert thresholds, and percentiles over rounded times.

/// Targets for the 50th and the 95th percentile.
pub const TARGET_P50_MS: i64 = 2_000;
pub const TARGET_P95_MS: i64 = 5_000;
/// Alert threshold: a smaller share of first signals served from the cache raises an alert.
pub const MIN_HIT_RATE: f64 = 0.70;
pub const MAX_ERROR_RATE: f64 = 0.01;
/// Alert threshold: more breaches of the p95 target within `BREACH_WINDOW_S` raise an alert.
pub const MAX_BREACHES: i64 = 10;
pub const BREACH_WINDOW_S: i64 = 300;
/// Shares are not computed over fewer events.
pub const MIN_EVENTS: i64 = 20;

/// Where a signal came from.
pub const SIGNAL_SOURCES: [&str; 3] = ["snapshot", "cold_start", "failure_index"];
pub const SURFACES: [&str; 3] = ["ui", "cli", "ci"];
pub const EVENT_TYPES: [&str; 6] =
    ["signal.start", "signal.rendered", "signal.timeout", "signal.error", "signal.cache_hit", "signal.cold_start"];

/// Rounds to three significant digits, an error of at most 0.5 %. The times of an hour then need few rows.
pub fn rounded(ms: i64) -> i64 {
    let mut scale = 1;
    while ms / scale >= 1_000 {
        scale *= 10;
    }
    (ms + scale / 2) / scale * scale
}

/// Returns the percentile, interpolated between neighbors as `percentile_cont` does in SQL. `times` are sorted pairs of
/// time and count.
pub fn percentile(times: &[(i64, i64)], percent: i64) -> Option<i64> {
    let total: i64 = times.iter().map(|(_, count)| count).sum();
    // In hundredths: integers give the same result as the exact numbers of SQL.
    let rank = percent * (total - 1).max(0);
    let time_at = |rank: i64| {
        let mut seen = 0;
        times.iter().find_map(|(ms, count)| {
            seen += count;
            (seen > rank).then_some(*ms)
        })
    };
    let (below, above) = (time_at(rank / 100)?, time_at((rank + 99) / 100)?);
    Some(below + ((above - below) * (rank % 100) + 50) / 100)
}

/// Compliance in percent, with two decimals. `None` without signals.
pub fn compliance_pct(total: i64, breaches: i64) -> Option<f64> {
    (total > 0).then(|| ((total - breaches) as f64 * 10_000.0 / total as f64).round() / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement S5.
    #[test]
    fn times_are_rounded_to_three_digits() {
        let rounded_times = [0, 7, 999, 1_000, 1_234, 1_235, 12_345, 999_999].map(rounded);
        assert_eq!(rounded_times, [0, 7, 999, 1_000, 1_230, 1_240, 12_300, 1_000_000]);
    }

    /// Requirement S5.
    #[test]
    fn percentiles_are_interpolated_between_neighbors() {
        let times = [(100, 50), (200, 45), (900, 5)];
        assert_eq!([50, 95, 99].map(|percent| percentile(&times, percent)), [Some(150), Some(235), Some(900)]);
        assert_eq!([0, 100].map(|percent| percentile(&times, percent)), [Some(100), Some(900)]);
        assert_eq!(percentile(&[(7, 1)], 95), Some(7));
        assert_eq!(percentile(&[], 50), None);
    }

    /// Requirement S5.
    #[test]
    fn compliance_has_two_decimals() {
        assert_eq!(compliance_pct(3, 1), Some(66.67));
        assert_eq!(compliance_pct(0, 0), None);
    }
}
