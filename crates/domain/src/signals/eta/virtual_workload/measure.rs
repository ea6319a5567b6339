//! The workloads with their bars, and the figures of a run.

use super::world::{LogNormal, Scored, Shift, WorkKind, Workload, World};
use crate::queue::retry::RetryPolicy;
use crate::signals::eta::line::{P50, P90};

/// Answers after a shift that are not measured, and the number of those that are.
const AFTER_SHIFT: usize = 50;
const SHIFT_ANSWERS: usize = 300;

/// Limits that a workload must meet.
#[derive(Clone, Copy, Debug)]
pub struct Bars {
    pub p50: Option<(f64, f64)>,
    pub p90: (f64, f64),
    /// The median width over that of the oracle.
    pub width: Option<f64>,
    /// The median relative error of the remaining time at 50 % progress.
    pub progress_error: Option<f64>,
}

impl Bars {
    /// The limits of a single seed. The bars hold for the mean of several seeds: within one world errors are correlated.
    pub fn of_one_seed(&self) -> Self {
        let wider = |(low, high): (f64, f64), by: f64| (low - by, high + by);
        Self {
            p50: self.p50.map(|bar| wider(bar, 0.05)),
            p90: wider(self.p90, 0.04),
            width: self.width.map(|bar| bar * 1.25),
            progress_error: self.progress_error.map(|bar| bar * 1.25),
        }
    }
}

/// A workload with its bars.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub name: &'static str,
    pub workload: Workload,
    pub bars: Bars,
    /// Answers before this share of the jobs are not measured: the history is learned.
    pub warm_up: f64,
    /// Worlds with different seeds that are measured together. Errors within one backlog are correlated.
    pub worlds: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct Measured {
    pub answers: usize,
    pub p50: f64,
    pub p90: f64,
    /// Median width, and that of the oracle.
    pub width_s: f64,
    pub oracle_width_s: f64,
    pub progress_error: Option<f64>,
}

impl Measured {
    /// `None` without an oracle.
    pub fn width_ratio(&self) -> Option<f64> {
        (self.oracle_width_s > 0.0).then(|| self.width_s / self.oracle_width_s)
    }

    /// The mean of several seeds. `None` without any.
    pub fn mean_of(seeds: &[Self]) -> Option<Self> {
        let count = seeds.len() as f64;
        let mean = |of: fn(&Self) -> f64| seeds.iter().map(of).sum::<f64>() / count;
        let errors: Option<Vec<f64>> = seeds.iter().map(|one| one.progress_error).collect();
        (!seeds.is_empty()).then(|| Self {
            answers: seeds.iter().map(|one| one.answers).sum(),
            p50: mean(|one| one.p50),
            p90: mean(|one| one.p90),
            width_s: mean(|one| one.width_s),
            oracle_width_s: mean(|one| one.oracle_width_s),
            progress_error: errors.map(|errors| errors.iter().sum::<f64>() / count),
        })
    }

    pub fn meets(&self, bars: &Bars) -> bool {
        let within = |value: f64, (low, high): (f64, f64)| (low..=high).contains(&value);
        within(self.p90, bars.p90)
            && bars.p50.is_none_or(|bar| within(self.p50, bar))
            && bars.width.is_none_or(|bar| self.width_ratio().is_some_and(|ratio| ratio <= bar))
            && bars.progress_error.is_none_or(|bar| self.progress_error.is_some_and(|error| error <= bar))
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

impl Scenario {
    /// Runs the workload and measures the answers that were shown.
    pub fn measure(&self, seed: u64) -> Measured {
        let mut all = Vec::new();
        for world in 0..self.worlds {
            let (scored, shifted_s) = World::new(self.workload.clone(), seed + world * 1_000_003).run();
            let mut shown: Vec<Scored> = scored.into_iter().filter(|scored| scored.answer.is_shown).collect();
            let (skipped, measured) = match shifted_s {
                Some(shifted_s) => (shown.partition_point(|one| one.at_s < shifted_s) + AFTER_SHIFT, SHIFT_ANSWERS),
                None => ((shown.len() as f64 * self.warm_up) as usize, usize::MAX),
            };
            all.extend(shown.drain(skipped.min(shown.len())..).take(measured));
        }
        Measured::of(&all)
    }
}

impl Measured {
    fn of(scored: &[Scored]) -> Self {
        let count = scored.len().max(1) as f64;
        let within = |at: usize| scored.iter().filter(|s| s.took_s() <= s.answer.corrected[at]).count() as f64 / count;
        let with_oracle = || scored.iter().filter_map(|scored| Some((scored, scored.oracle?)));
        let width = |quantiles: &[f64]| quantiles[P90] - quantiles[P50];
        let at_half =
            scored.iter().filter(|scored| scored.progress.is_some_and(|share| (0.45..=0.55).contains(&share)));
        let errors: Vec<f64> = at_half.map(|s| (s.answer.corrected[P50] / s.took_s() - 1.0).abs()).collect();
        Self {
            answers: scored.len(),
            p50: within(P50),
            p90: within(P90),
            width_s: median(with_oracle().map(|(scored, _)| width(&scored.answer.corrected)).collect()),
            oracle_width_s: median(with_oracle().map(|(_, oracle)| width(&oracle.quantiles)).collect()),
            progress_error: (errors.len() >= 20).then(|| median(errors)),
        }
    }
}

fn one_kind(workers: usize, load: f64) -> Workload {
    let run = LogNormal { median_s: 10.0, deviation: 0.6 };
    let mean_s = 10.0 * (0.6f64 * 0.6 / 2.0).exp();
    let every_s = mean_s / workers as f64 / load;
    Workload {
        kinds: vec![kind(0, run, every_s)],
        workers,
        concurrency: 1,
        limit: None,
        rate_per_s: None,
        starvation_s: 120.0,
        retry: RetryPolicy::QUEUE_DEFAULT,
        max_attempts: 1,
        // One worker has long busy periods, so its errors are correlated and more jobs are needed.
        jobs: if workers == 1 { 4_000 } else { 1_500 },
        shift: None,
        is_backlog: false,
        ask_every_s: None,
        turnaround_s: 0.0,
        kind_spread: 0.0,
    }
}

fn kind(kind: usize, run: LogNormal, every_s: f64) -> WorkKind {
    WorkKind {
        kind,
        priority: 0,
        affinity: None,
        run,
        load: LogNormal { median_s: 1.0, deviation: 0.1 },
        every_s,
        burst: 1,
        failing: 0.0,
        progress: None,
        hidden_models: 0,
    }
}

/// The workloads of the table, in its order.
pub fn scenarios() -> Vec<Scenario> {
    let stationary = Bars { p50: Some((0.45, 0.55)), p90: (0.88, 0.92), width: Some(1.3), progress_error: None };
    let hard = Bars { p50: Some((0.40, 0.60)), p90: (0.86, 0.94), width: Some(1.6), progress_error: None };
    let scenario = |name, workload, bars| Scenario { name, workload, bars, warm_up: 0.15, worlds: 1 };
    let bursts = || {
        let short = LogNormal { median_s: 4.0, deviation: 0.5 };
        let long = LogNormal { median_s: 20.0, deviation: 0.7 };
        let urgent = WorkKind { priority: 5, burst: 4, ..kind(0, short, 16.0) };
        let plain = WorkKind { burst: 20, ..kind(1, long, 80.0) };
        let normal = WorkKind { burst: 6, ..kind(0, short, 20.0) };
        Workload { kinds: vec![urgent, plain, normal], limit: Some(6), rate_per_s: Some(2.0), ..one_kind(8, 0.8) }
    };
    let pool = || {
        let run = LogNormal { median_s: 3.0, deviation: 0.4 };
        let load = LogNormal { median_s: 12.0, deviation: 0.15 };
        let model = |number, name, every_s| WorkKind { affinity: Some(name), load, ..kind(number, run, every_s) };
        let kinds = vec![model(0, "alpha", 10.0), model(1, "beta", 20.0), model(2, "gamma", 40.0)];
        Workload { kinds, ..one_kind(1, 0.8) }
    };
    let failing = || {
        let base = one_kind(8, 0.5);
        let kinds = base.kinds.iter().map(|kind| WorkKind { failing: 0.3, ..kind.clone() }).collect();
        Workload { kinds, max_attempts: 5, ..base }
    };
    let shift = || {
        let shift = Shift { after: 800, factor: 5.0, workers_lost: 1 };
        Workload { shift: Some(shift), ..one_kind(4, 0.7) }
    };
    let progress = || {
        let base = one_kind(4, 0.7);
        let run = LogNormal { median_s: 30.0, deviation: 1.0 };
        let kinds = vec![WorkKind {
            progress: Some(LogNormal { median_s: 1.6, deviation: 0.15 }),
            run,
            every_s: 20.0,
            ..base.kinds[0].clone()
        }];
        Workload { kinds, ..base }
    };
    // One backlog of 90 jobs, without any history.
    let backlog = |kinds| Workload {
        kinds,
        jobs: 90,
        is_backlog: true,
        ask_every_s: Some(4.0),
        turnaround_s: 0.01,
        starvation_s: 300.0,
        ..one_kind(1, 0.8)
    };
    let (generate, load) = (LogNormal { median_s: 0.5, deviation: 0.02 }, LogNormal { median_s: 2.0, deviation: 0.1 });
    // The shape of examples/models/gpu-bench. The models differ by about a fifth, which is unknown until they have run.
    let by_affinity = || {
        let generate = LogNormal { median_s: 0.85, deviation: 0.02 };
        let load = LogNormal { median_s: 0.72, deviation: 0.05 };
        let model = |number, name| WorkKind { affinity: Some(name), load, ..kind(number, generate, 1.0) };
        let models = backlog(vec![model(0, "alpha"), model(1, "beta"), model(2, "gamma")]);
        Workload { kind_spread: 0.2, turnaround_s: 0.04, ..models }
    };
    let by_arrival = || backlog(vec![WorkKind { load, hidden_models: 3, ..kind(0, generate, 1.0) }]);
    let many = |name, workload, bars| Scenario { name, workload, bars, warm_up: 0.0, worlds: 16 };
    let cold = Bars { p50: Some((0.40, 0.60)), p90: (0.86, 0.94), width: None, progress_error: None };
    let shifted = Bars { p50: None, p90: (0.80, 0.97), width: None, progress_error: None };
    let reported = Bars { p50: Some((0.40, 0.60)), p90: (0.86, 0.94), width: None, progress_error: Some(0.20) };
    vec![
        scenario("one kind, 1 worker", one_kind(1, 0.8), stationary),
        scenario("one kind, 4 workers", one_kind(4, 0.85), stationary),
        scenario("one kind, 16 workers", one_kind(16, 0.9), stationary),
        scenario("two kinds, bursts, priorities, limits", bursts(), hard),
        scenario("pool: 3 models, 1 slot", pool(), hard),
        scenario("failing kind (30 %) with backoff", failing(), Bars { width: Some(1.8), ..hard }),
        scenario("sudden shift (×5, a worker lost)", shift(), shifted),
        scenario("progress reported", progress(), reported),
        many("backlog of 3 models, by affinity", by_affinity(), cold),
        many("backlog of 3 models, by arrival", by_arrival(), cold),
    ]
}
