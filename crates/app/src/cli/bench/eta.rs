//! `windlass bench --only eta`: how often estimates hold, on seeded workloads in virtual time and in one run in real time.

mod real_time;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use domain::signals::eta::virtual_workload::{Measured, Scenario, scenarios};

use super::BenchArgs;
use super::figure::Figure;
use crate::cli::output::{Listing, Output, cell};

/// The first seed. The same seeds give the same table. No constant of the estimator was chosen on them.
const SEED: u64 = 1_001;

/// Measures every workload, and prints the table of results with their limits: the means of the seeds.
pub(super) async fn measure(args: &BenchArgs, output: Output) -> anyhow::Result<Vec<Figure>> {
    let mut listing =
        Listing::new(&["WORKLOAD", "ANSWERS", "P90 HELD", "P50 HELD", "WIDTH / ORACLE", "LIMITS", "HOLDS"]);
    let mut figures = Vec::new();
    for scenario in scenarios() {
        let started = Instant::now();
        let seeds = measure_seeds(&scenario, args.rounds.max(1) as u64);
        let Some(measured) = Measured::mean_of(&seeds) else { continue };
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
        let secs = started.elapsed().as_secs_f64();
        figures.push(figure(scenario.name, "virtual time", measured.answers, measured.p90, secs));
    }
    let started = Instant::now();
    let real = real_time::measure(args).await?;
    listing.row([
        cell("two kinds, in real time"),
        cell(real.answers),
        cell(percent(real.p90)),
        cell(percent(real.p50)),
        cell("–"),
        cell(format!("p90 {}, p50 {}", range(real_time::P90), range(real_time::P50))),
        cell(if real.hold() { "yes" } else { "no" }),
    ]);
    let secs = started.elapsed().as_secs_f64();
    figures.push(figure("two kinds, in real time", "real time", real.answers, real.p90, secs));
    if output == Output::Table {
        listing.print()?;
    }
    Ok(figures)
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn range((low, high): (f64, f64)) -> String {
    format!("{:.0}–{:.0} %", low * 100.0, high * 100.0)
}

/// Measures several seeds, as many at once as there are processors.
fn measure_seeds(scenario: &Scenario, seeds: u64) -> Vec<Measured> {
    let next = AtomicU64::new(0);
    let measure = || {
        let take = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|seed| *seed < seeds);
        std::iter::from_fn(take).map(|seed| (seed, scenario.measure(SEED + seed))).collect::<Vec<_>>()
    };
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut measured: Vec<(u64, Measured)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..processors).map(|_| scope.spawn(measure)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
    });
    measured.sort_by_key(|(seed, _)| *seed);
    measured.into_iter().map(|(_, measured)| measured).collect()
}

fn limits(scenario: &Scenario) -> String {
    let bars = &scenario.bars;
    let mut limits = vec![format!("p90 {}", range(bars.p90))];
    limits.extend(bars.p50.map(|p50| format!("p50 {}", range(p50))));
    limits.extend(bars.width.map(|width| format!("width {width}")));
    limits.extend(bars.progress_error.map(|error| format!("error {:.0} % at half", error * 100.0)));
    limits.join(", ")
}

fn figure(name: &str, cfg: &str, answers: usize, p90: f64, secs: f64) -> Figure {
    Figure {
        peer: "windlass".into(),
        cfg: cfg.into(),
        metric: format!("eta: {name}"),
        n: answers as u64,
        secs,
        value: p90 * 100.0,
        unit: "% within the p90".into(),
        p99: None,
        rss_kb: 0,
        wal_bytes: None,
        least: None,
        most: None,
    }
}
