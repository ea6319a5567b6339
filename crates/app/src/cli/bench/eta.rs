//! `windlass bench --only eta`: how often estimates hold, on seeded workloads in virtual time. No database is used.

use std::time::Instant;

use domain::signals::eta::virtual_workload::{Measured, Scenario, scenarios};

use super::figure::Figure;
use crate::cli::output::{Listing, Output, cell};

/// The same seed gives the same table.
const SEED: u64 = 1;

/// Measures every workload, and prints the table of results with their limits.
pub(super) fn measure(output: Output) -> anyhow::Result<Vec<Figure>> {
    let mut listing =
        Listing::new(&["WORKLOAD", "ANSWERS", "P90 HELD", "P50 HELD", "WIDTH / ORACLE", "LIMITS", "HOLDS"]);
    let mut figures = Vec::new();
    for scenario in scenarios() {
        let started = Instant::now();
        let measured = scenario.measure(SEED);
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let width = match measured.progress_error {
            Some(error) if scenario.bars.progress_error.is_some() => format!("error {:.0} %", error * 100.0),
            _ => measured.width_ratio().map_or_else(|| "–".into(), |ratio| format!("{ratio:.2}")),
        };
        listing.row([
            cell(scenario.name),
            cell(measured.answers),
            cell(percent(measured.p90)),
            cell(percent(measured.p50)),
            cell(width),
            cell(limits(&scenario)),
            cell(if measured.meets(&scenario.bars) { "yes" } else { "no" }),
        ]);
        figures.push(figure(&scenario, &measured, started.elapsed().as_secs_f64()));
    }
    if output == Output::Table {
        listing.print()?;
    }
    Ok(figures)
}

fn limits(scenario: &Scenario) -> String {
    let range = |(low, high): (f64, f64)| format!("{:.0}–{:.0} %", low * 100.0, high * 100.0);
    let bars = &scenario.bars;
    let mut limits = vec![format!("p90 {}", range(bars.p90))];
    limits.extend(bars.p50.map(|p50| format!("p50 {}", range(p50))));
    limits.extend(bars.width.map(|width| format!("width {width}")));
    limits.extend(bars.progress_error.map(|error| format!("error {:.0} % at half", error * 100.0)));
    limits.join(", ")
}

fn figure(scenario: &Scenario, measured: &Measured, secs: f64) -> Figure {
    Figure {
        peer: "windlass".into(),
        cfg: "virtual time".into(),
        metric: format!("eta: {}", scenario.name),
        n: measured.answers as u64,
        secs,
        value: measured.p90 * 100.0,
        unit: "% within the p90".into(),
        p99: None,
        rss_kb: 0,
        wal_bytes: None,
        least: None,
        most: None,
    }
}
