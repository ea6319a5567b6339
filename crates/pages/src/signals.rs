//! Time to first signal against its targets, and whether what was foretold held.

use std::collections::BTreeMap;

use askama::Template;
use jiff::SignedDuration;
use wire::{TtfsSlo, TtfsSummary};

use crate::chart::{self, Reading};
use crate::frame::Frame;
use crate::html::{self, Markup};

/// What is promised, in milliseconds: half within the first, nineteen of twenty within the second.
const P50_TARGET_MS: i64 = 2_000;
const P95_TARGET_MS: i64 = 5_000;
/// What a chart shows of the past.
const SHOWN: SignedDuration = SignedDuration::from_hours(chart::HOURS as i64);

#[derive(Debug, Template)]
#[template(path = "signals.html")]
pub struct Signals {
    pub frame: Frame,
    /// By hour, newest first.
    pub summary: Vec<TtfsSummary>,
    pub slo: TtfsSlo,
    pub calibration: Vec<Calibrated>,
}

/// How often what was said of a kind of work held.
#[derive(Clone, Debug)]
pub struct Calibrated {
    pub kind: String,
    pub affinity: String,
    pub run_p50_s: Option<f64>,
    pub run_p95_s: Option<f64>,
    pub answers: f64,
    pub within_p50_pct: Option<f64>,
    pub within_p90_pct: Option<f64>,
}

impl Signals {
    /// A chart for each surface.
    fn surfaces(&self) -> Vec<(String, Markup)> {
        let mut by_surface: BTreeMap<&str, Vec<Reading>> = BTreeMap::new();
        for hour in &self.summary {
            let readings = by_surface.entry(&hour.surface).or_default();
            match readings.iter_mut().find(|reading| reading.at == hour.at) {
                // Hits and misses of one hour: the slower of the two is what somebody waited for.
                Some(reading) => {
                    reading.p50 = reading.p50.max(hour.p50_ms.unwrap_or(0));
                    reading.p95 = reading.p95.max(hour.p95_ms.unwrap_or(0));
                }
                None => {
                    readings.push(Reading { at: hour.at, p50: hour.p50_ms.unwrap_or(0), p95: hour.p95_ms.unwrap_or(0) })
                }
            }
        }
        let chart = |(surface, mut readings): (&str, Vec<Reading>)| {
            readings.sort_by_key(|reading| reading.at);
            let is_shown = |reading: &Reading| self.frame.now.duration_since(reading.at) < SHOWN;
            readings.retain(is_shown);
            (surface.to_owned(), chart::readings(&readings, [P50_TARGET_MS, P95_TARGET_MS], self.frame.now))
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
