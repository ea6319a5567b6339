//! The signals page: time to first signal (TTFS) against its targets, and the accuracy of estimates.

use std::collections::BTreeMap;

use askama::Template;
use jiff::SignedDuration;
use wire::{TtfsSlo, TtfsSummary};

use crate::chart::{self, HourlyPercentiles};
use crate::frame::Frame;
use crate::html::{self, Markup};

/// Targets in milliseconds: p50 and p95.
const P50_TARGET_MS: i64 = 2_000;
const P95_TARGET_MS: i64 = 5_000;
/// The period that a chart covers.
const CHART_PERIOD: SignedDuration = SignedDuration::from_hours(chart::HOURS as i64);

#[derive(Debug, Template)]
#[template(path = "signals.html")]
pub struct Signals {
    pub frame: Frame,
    /// By hour, newest first.
    pub summary: Vec<TtfsSummary>,
    pub slo: TtfsSlo,
    pub calibration: Vec<EtaAccuracy>,
}

/// How often the estimates for one kind of job were met.
#[derive(Clone, Debug)]
pub struct EtaAccuracy {
    pub kind: String,
    pub affinity: String,
    pub run_p50_s: Option<f64>,
    pub run_p95_s: Option<f64>,
    pub answers: f64,
    pub within_p50_pct: Option<f64>,
    pub within_p90_pct: Option<f64>,
    /// Median distance between the p50 and the p90.
    pub width_s: Option<f64>,
    /// By level: the share of ends within that quantile. Empty without answers.
    pub reliability: Vec<(f64, f64)>,
}

impl Signals {
    /// One chart per surface.
    fn surfaces(&self) -> Vec<(String, Markup)> {
        let mut by_surface: BTreeMap<&str, Vec<HourlyPercentiles>> = BTreeMap::new();
        for hour in &self.summary {
            let hours = by_surface.entry(&hour.surface).or_default();
            match hours.iter_mut().find(|row| row.at == hour.at) {
                // Cache hits and misses of one hour are separate rows; show the slower of the two.
                Some(row) => {
                    row.p50 = row.p50.max(hour.p50_ms.unwrap_or(0));
                    row.p95 = row.p95.max(hour.p95_ms.unwrap_or(0));
                }
                None => hours.push(HourlyPercentiles {
                    at: hour.at,
                    p50: hour.p50_ms.unwrap_or(0),
                    p95: hour.p95_ms.unwrap_or(0),
                }),
            }
        }
        let chart = |(surface, mut hours): (&str, Vec<HourlyPercentiles>)| {
            hours.sort_by_key(|row| row.at);
            let is_recent = |row: &HourlyPercentiles| self.frame.now.duration_since(row.at) < CHART_PERIOD;
            hours.retain(is_recent);
            (surface.to_owned(), chart::percentiles(&hours, [P50_TARGET_MS, P95_TARGET_MS], self.frame.now))
        };
        by_surface.into_iter().map(chart).collect()
    }
}

fn pct(share: &Option<f64>) -> String {
    share.map_or_else(|| "–".into(), |share| format!("{share:.0} %"))
}

fn length(seconds: &Option<f64>) -> String {
    seconds.map_or_else(|| "–".into(), html::seconds)
}
