//! Benchmark results and the comparison of two runs.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::cli::output::{self, Output};

/// Changes below this share are treated as noise, even if the ranges of the two runs do not overlap.
const NOISE: f64 = 0.05;

/// The result of one measurement: the median of its rounds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Figure {
    pub(super) peer: String,
    pub(super) cfg: String,
    pub(super) metric: String,
    pub(super) n: u64,
    pub(super) secs: f64,
    pub(super) value: f64,
    pub(super) unit: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) p99: Option<f64>,
    #[serde(default)]
    pub(super) rss_kb: u64,
    /// Bytes of PostgreSQL's write-ahead log per job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) wal_bytes: Option<f64>,
    /// The lowest and highest value of the rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) least: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) most: Option<f64>,
}

impl Figure {
    pub(super) fn median(mut rounds: Vec<Self>) -> Self {
        rounds.sort_by(|a, b| a.value.total_cmp(&b.value));
        let (least, most) = (rounds[0].value, rounds[rounds.len() - 1].value);
        let median = rounds.swap_remove(rounds.len() / 2);
        Self { least: Some(least), most: Some(most), ..median }
    }

    pub(super) fn print(&self, output: Output) -> anyhow::Result<()> {
        match output {
            Output::Json => output::line(&serde_json::to_string(self)?),
            Output::Table => {
                let p99 = self.p99.map(|p99| format!(", p99 {p99:.2}")).unwrap_or_default();
                let wal = self.wal_bytes.map(|bytes| format!(", {bytes:.0} bytes of WAL per job")).unwrap_or_default();
                let (cfg, metric, value, unit, n) = (&self.cfg, &self.metric, self.value, &self.unit, self.n);
                output::line(&format!("{cfg:<18} {metric:<18} {value:>12.2} {unit}{p99}{wal}   (n={n})"))
            }
        }
    }

    fn key(&self) -> (String, String, String) {
        (self.peer.clone(), self.cfg.clone(), self.metric.clone())
    }

    fn is_within(&self, other: &Self) -> bool {
        let (least, most) = (other.least.unwrap_or(other.value), other.most.unwrap_or(other.value));
        (least..=most).contains(&self.value)
    }

    /// The relative change from an older figure; `None` if it is within the noise of either.
    fn change_from(&self, old: &Self) -> Option<f64> {
        let change = self.value / old.value - 1.0;
        let noise = change.abs() < NOISE || self.is_within(old) || old.is_within(self);
        (!noise).then_some(change)
    }
}

/// Reads a file of JSON lines; the last figure of each measurement wins.
pub(super) fn read(path: &Path) -> anyhow::Result<BTreeMap<(String, String, String), Figure>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut figures = BTreeMap::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let figure: Figure = serde_json::from_str(line)
            .with_context(|| format!("line {} of {} is not a benchmark result", number + 1, path.display()))?;
        figures.insert(figure.key(), figure);
    }
    Ok(figures)
}

/// One line for each change larger than the noise.
pub(super) fn compare(old: &BTreeMap<(String, String, String), Figure>, new: &[Figure]) -> Vec<String> {
    let changed = |figure: &Figure| {
        let before = old.get(&figure.key())?;
        let change = figure.change_from(before)? * 100.0;
        let (cfg, metric, unit) = (&figure.cfg, &figure.metric, &figure.unit);
        Some(format!("{cfg} {metric}: {:.1} → {:.1} {unit} ({change:+.0} %)", before.value, figure.value))
    };
    new.iter().filter_map(changed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(value: f64, least: f64, most: f64) -> Figure {
        let text =
            r#"{"peer":"windlass","cfg":"embedded sqlite","metric":"bulk","n":1,"secs":1,"value":1,"unit":"jobs/s"}"#;
        let figure: Figure = serde_json::from_str(text).expect("reads");
        Figure { value, least: Some(least), most: Some(most), ..figure }
    }

    fn check(old: Figure, new: Figure, expected: &[&str]) {
        let old = BTreeMap::from([(old.key(), old)]);
        assert_eq!(compare(&old, &[new]), expected);
    }

    #[test]
    fn a_change_beyond_the_spread_of_both_runs_is_reported() {
        check(
            figure(100.0, 95.0, 105.0),
            figure(150.0, 140.0, 160.0),
            &["embedded sqlite bulk: 100.0 → 150.0 jobs/s (+50 %)"],
        );
        check(
            figure(100.0, 95.0, 105.0),
            figure(50.0, 40.0, 60.0),
            &["embedded sqlite bulk: 100.0 → 50.0 jobs/s (-50 %)"],
        );
    }

    #[test]
    fn noise_is_not_reported() {
        check(figure(100.0, 60.0, 160.0), figure(150.0, 140.0, 160.0), &[]);
        check(figure(100.0, 99.0, 101.0), figure(120.0, 98.0, 160.0), &[]);
        check(figure(100.0, 99.9, 100.1), figure(103.0, 102.0, 104.0), &[]);
    }

    #[test]
    fn a_median_includes_its_minimum_and_maximum() {
        let rounds = [3.0, 1.0, 2.0].map(|value| figure(value, value, value));
        let median = Figure::median(rounds.into());
        assert_eq!((median.value, median.least, median.most), (2.0, Some(1.0), Some(3.0)));
    }
}
