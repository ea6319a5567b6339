//! Monte Carlo simulation of the line before a queued job.
//!
//! Each run simulates what the claims will do: running jobs end, a slot that becomes free takes the next job in claim
//! order (priority, loaded affinity, age, starvation bound), a worker that swaps waits for its running jobs and loads
//! the other model, limits of the queue delay a start, and jobs that may overtake arrive. Then the job itself runs, and
//! is retried as often as jobs of its kind are.
//!
//! The simulation is bounded: a long line is simulated in blocks of jobs, and many slots as fewer.

use crate::signals::eta::arrivals::Arrivals;
use crate::signals::eta::durations::Durations;
use crate::signals::eta::progress::{Progress, ProgressCurve};
use crate::signals::eta::random::RandomSource;
use crate::signals::eta::retries::RetryForecast;

/// Simulations per estimate.
pub const RUNS: usize = 200;
/// Levels of the quantiles of a forecast.
pub const LEVELS: [f64; 6] = [0.1, 0.25, 0.5, 0.75, 0.9, 0.95];
pub const P50: usize = 2;
pub const P90: usize = 4;
/// Entries of all lanes that one run simulates. More jobs are simulated in blocks.
pub const LINE_ENTRIES: usize = 64;
pub const LINE_LANES: usize = 64;
pub const LINE_SLOTS: usize = 64;
/// Starts that one run simulates.
const STARTS_MAX: usize = 4 * LINE_ENTRIES;
/// Delay between the end of an attempt and the moment at which a retry can be claimed, beyond its backoff.
const LEAST_S: f64 = 0.001;

/// A running attempt.
#[derive(Clone, Debug)]
pub struct RunningWork<'a> {
    pub run: &'a Durations,
    /// Time since the attempt began to work, or since it began to load.
    pub elapsed_s: f64,
    /// The time to load the affinity; set while it is being loaded.
    pub loading: Option<&'a Durations>,
    pub progress: Option<(Progress, &'a ProgressCurve)>,
}

impl RunningWork<'_> {
    /// The remaining time of the attempt. `level` is its quantile; while loading, the run itself is drawn.
    pub fn remaining(&self, level: f64, random: &mut RandomSource) -> f64 {
        if let Some(load) = self.loading {
            return load.remaining(self.elapsed_s, random.unit()) + self.run.quantile(level);
        }
        let by_history = self.run.remaining(self.elapsed_s, level);
        let Some((progress, curve)) = self.progress else { return by_history };
        // Quantiles are averaged on a logarithmic scale, which keeps the shape of both distributions.
        let weight = curve.weight(progress.share);
        let by_progress = curve.remaining(progress, self.elapsed_s, level);
        (weight * by_progress.max(LEAST_S).ln() + (1.0 - weight) * by_history.max(LEAST_S).ln()).exp()
    }
}

/// A waiting job. The oldest one is claimed first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LineEntry {
    /// When the job became ready, in seconds from now.
    pub ready_s: f64,
    /// Decides between jobs that became ready at the same time, for example those of one batch: the job's id.
    pub order: u128,
}

impl LineEntry {
    fn is_older(self, than: Self) -> bool {
        self.ready_s.total_cmp(&than.ready_s).then(self.order.cmp(&than.order)).is_lt()
    }
}

/// Waiting jobs that differ only in age.
#[derive(Clone, Debug)]
pub struct LineLane<'a> {
    pub priority: i32,
    /// A number for the affinity; `None` fits every worker.
    pub affinity: Option<usize>,
    pub run: &'a Durations,
    pub load: Option<&'a Durations>,
    /// The jobs that may be claimed before the job, oldest first. Each entry stands for `block` jobs.
    pub waiting: Vec<LineEntry>,
    pub block: f64,
    pub starvation_s: f64,
    /// Further jobs that arrive.
    pub arrivals: Arrivals,
}

#[derive(Clone, Debug)]
pub struct LineWorker<'a> {
    /// By lane.
    pub serves: Vec<bool>,
    pub loaded: Option<usize>,
    pub concurrency: usize,
    pub running: Vec<RunningWork<'a>>,
}

/// A token bucket.
#[derive(Clone, Copy, Debug)]
pub struct LineRate {
    pub tokens: f64,
    pub per_s: f64,
}

#[derive(Clone, Debug)]
pub struct OwnJob<'a> {
    pub lane: usize,
    pub entry: LineEntry,
    pub retries: RetryForecast,
    /// Waiting times of such jobs, for the wait of a retry.
    pub wait: Option<&'a Durations>,
}

/// The line before a queued job.
#[derive(Clone, Debug)]
pub struct Line<'a> {
    pub lanes: Vec<LineLane<'a>>,
    pub workers: Vec<LineWorker<'a>>,
    /// The queue's concurrency limit.
    pub limit: Option<usize>,
    pub rate: Option<LineRate>,
    /// Time between the end of a job and the start of the next one in the same slot.
    pub turnaround_s: f64,
    pub own: OwnJob<'a>,
}

/// The predicted time until the end of a job: quantiles at `LEVELS`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forecast {
    pub quantiles: [f64; LEVELS.len()],
    /// Swaps before the job starts, its own included: the median over all runs.
    pub swaps: u32,
}

impl Forecast {
    pub fn of(mut samples: Vec<f64>, mut swaps: Vec<u32>) -> Self {
        samples.sort_by(f64::total_cmp);
        swaps.sort_unstable();
        let last = samples.len() - 1;
        let at = |level: f64| {
            let position = (level * samples.len() as f64 - 0.5).clamp(0.0, last as f64);
            let low = position.floor() as usize;
            let part = position.fract();
            samples[low] * (1.0 - part) + samples[(low + 1).min(last)] * part
        };
        Self { quantiles: LEVELS.map(at), swaps: swaps.get(swaps.len() / 2).copied().unwrap_or(0) }
    }

    pub fn p50_s(&self) -> f64 {
        self.quantiles[P50]
    }

    pub fn p90_s(&self) -> f64 {
        self.quantiles[P90]
    }
}

/// The same shares in another order, so that the runs together cover the distribution evenly.
fn stratified(runs: usize, random: &mut RandomSource) -> Vec<f64> {
    let mut levels: Vec<f64> = (0..runs).map(|run| (run as f64 + 0.5) / runs as f64).collect();
    for place in (1..levels.len()).rev() {
        levels.swap(place, random.below(place + 1));
    }
    levels
}

/// The time after the start of an attempt until the end of the job, retries included.
fn own_time(
    first_s: f64,
    run: &Durations,
    load_s: impl Fn(&mut RandomSource) -> f64,
    retries: &RetryForecast,
    wait: Option<&Durations>,
    random: &mut RandomSource,
) -> f64 {
    let mut total_s = first_s;
    let (mut attempt, mut last_wait_s) = (retries.attempt.max(1), retries.last_wait_s);
    while attempt < retries.max_attempts && random.unit() < retries.shares.retried_after(attempt) {
        let delay_s = retries.policy.next_wait_s(last_wait_s);
        total_s += delay_s as f64 * (1.0 + retries.policy.jitter() * random.unit());
        total_s += wait.map_or(0.0, |wait| wait.draw(random)) + load_s(random) + run.draw(random);
        last_wait_s = Some(delay_s);
        attempt += 1;
        // Every attempt costs at least a delay; a bound keeps a zero delay from costing time here.
        if attempt - retries.attempt > 64 {
            break;
        }
    }
    total_s
}

/// Forecasts a running job.
pub fn running_forecast(
    work: &RunningWork<'_>,
    retries: &RetryForecast,
    wait: Option<&Durations>,
    seed: u64,
    runs: usize,
) -> Forecast {
    let mut random = RandomSource::new(seed);
    let levels = stratified(runs, &mut random);
    let sample = |level: f64| {
        let factor = if work.run.is_borrowed() { work.run.draw_factor(&mut random) } else { 1.0 };
        let first_s = work.remaining(level, &mut random) * factor;
        own_time(first_s, work.run, |_| 0.0, retries, wait, &mut random)
    };
    Forecast::of(levels.into_iter().map(sample).collect(), Vec::new())
}

/// Forecasts a job that becomes ready in `ready_s` seconds. The line at that time is unknown, so earlier waiting times
/// of such jobs take its place.
pub fn scheduled_forecast(
    ready_s: f64,
    run: &Durations,
    load: Option<&Durations>,
    retries: &RetryForecast,
    wait: Option<&Durations>,
    seed: u64,
    runs: usize,
) -> Forecast {
    let mut random = RandomSource::new(seed);
    let levels = stratified(runs, &mut random);
    let sample = |level: f64| {
        let wait_s = wait.map_or(0.0, |wait| wait.draw(&mut random));
        let load_s = load.map_or(0.0, |load| load.draw(&mut random));
        let factor = if run.is_borrowed() { run.draw_factor(&mut random) } else { 1.0 };
        let first_s = ready_s.max(0.0) + wait_s + load_s + run.quantile(level) * factor;
        own_time(first_s, run, |_| 0.0, retries, wait, &mut random)
    };
    Forecast::of(levels.into_iter().map(sample).collect(), Vec::new())
}

impl Line<'_> {
    /// Simulates the line. The same seed gives the same forecast.
    pub fn forecast(&self, seed: u64, runs: usize) -> Forecast {
        let mut random = RandomSource::new(seed);
        let levels = stratified(runs, &mut random);
        let (mut samples, mut swaps) = (Vec::with_capacity(runs), Vec::with_capacity(runs));
        let mut scratch = Run::new(self);
        for level in levels {
            scratch.reset(self, &mut random);
            let start = scratch.until_own_start(self, &mut random);
            let own = &self.lanes[self.own.lane];
            let factor = if own.run.is_borrowed() { scratch.means.of_run(self.own.lane) } else { 1.0 };
            let first_s = start.at_s + own.run.quantile(level) * factor;
            let load_s = |_: &mut RandomSource| 0.0;
            samples.push(own_time(first_s, own.run, load_s, &self.own.retries, self.own.wait, &mut random));
            swaps.push(start.swaps);
        }
        Forecast::of(samples, swaps)
    }
}

/// A job at the head of a lane.
#[derive(Clone, Copy, Debug)]
struct Head {
    lane: usize,
    entry: LineEntry,
}

/// Returns the affinity that a worker takes next, and whether it must swap: the rules of `queue::claim::next_lanes`.
fn next_affinity(heads: &[Head], line: &Line<'_>, held: Option<usize>, now_s: f64) -> Option<(Option<usize>, bool)> {
    let lane = |head: &Head| &line.lanes[head.lane];
    let priority = heads.iter().map(|head| lane(head).priority).max()?;
    let (mut fitting, mut other, mut starved): (Option<Head>, Option<Head>, Option<Head>) = (None, None, None);
    let is_older = |head: &Head, than: &Option<Head>| than.as_ref().is_none_or(|than| head.entry.is_older(than.entry));
    for head in heads.iter().filter(|head| lane(head).priority == priority) {
        let affinity = lane(head).affinity;
        if affinity.is_none() || affinity == held {
            if is_older(head, &fitting) {
                fitting = Some(*head);
            }
            continue;
        }
        if is_older(head, &other) {
            other = Some(*head);
        }
        if now_s - head.entry.ready_s > lane(head).starvation_s && is_older(head, &starved) {
            starved = Some(*head);
        }
    }
    let swap_to = |head: Head| Some((lane(&head).affinity, true));
    match (fitting, other) {
        (None, None) => None,
        (Some(_), None) => Some((held, false)),
        (None, Some(other)) => swap_to(other),
        (Some(fitting), Some(other)) if held.is_none() && other.entry.is_older(fitting.entry) => swap_to(other),
        (Some(fitting), Some(_)) => match starved.filter(|starved| starved.entry.ready_s < fitting.entry.ready_s) {
            Some(starved) => swap_to(starved),
            None => Some((held, false)),
        },
    }
}

struct LineSlot {
    free_s: f64,
    worker: usize,
}

struct OwnStart {
    /// When the job begins to work: after its model is loaded.
    at_s: f64,
    swaps: u32,
}

/// The state of one run. Its buffers are reused by the next.
struct Run {
    slots: Vec<LineSlot>,
    held: Vec<Option<usize>>,
    /// By lane: entries taken, and when the next job arrives.
    taken: Vec<usize>,
    next_arrival_s: Vec<f64>,
    /// By lane: jobs of the arrived burst that are not taken.
    arrived: Vec<f64>,
    /// When each place of the queue's limit becomes free.
    places: Vec<f64>,
    heads: Vec<Head>,
    swaps: u32,
    means: UncertainMeans,
}

/// By how much the means of the durations are off in one run. All jobs of a kind share the error, so it does not average out
/// over a long line.
struct UncertainMeans {
    /// By lane: the place of its run times, and of its load times.
    places: Vec<(usize, Option<usize>)>,
    uncertainties: Vec<f64>,
    factors: Vec<f64>,
}

impl UncertainMeans {
    fn new<'l>(line: &Line<'l>) -> Self {
        let mut known: Vec<&'l Durations> = Vec::new();
        let mut place_of = |durations: &'l Durations| {
            known.iter().position(|one| std::ptr::eq(*one, durations)).unwrap_or_else(|| {
                known.push(durations);
                known.len() - 1
            })
        };
        let places = line.lanes.iter().map(|lane| (place_of(lane.run), lane.load.map(&mut place_of))).collect();
        let uncertainties: Vec<f64> = known.iter().map(|durations| durations.uncertainty()).collect();
        Self { places, factors: vec![1.0; uncertainties.len()], uncertainties }
    }

    fn draw(&mut self, random: &mut RandomSource) {
        for (factor, uncertainty) in self.factors.iter_mut().zip(&self.uncertainties) {
            // The mean is one, so that a line through several kinds of work is not longer than each of them suggests.
            *factor = (uncertainty * (random.normal() - uncertainty / 2.0)).exp();
        }
    }

    fn of_run(&self, lane: usize) -> f64 {
        self.factors[self.places[lane].0]
    }

    fn of_load(&self, lane: usize) -> f64 {
        self.places[lane].1.map_or(1.0, |place| self.factors[place])
    }
}

impl Run {
    fn new(line: &Line<'_>) -> Self {
        Self {
            means: UncertainMeans::new(line),
            slots: Vec::with_capacity(LINE_SLOTS),
            held: Vec::with_capacity(line.workers.len()),
            taken: Vec::with_capacity(line.lanes.len()),
            next_arrival_s: Vec::with_capacity(line.lanes.len()),
            arrived: Vec::with_capacity(line.lanes.len()),
            places: Vec::new(),
            heads: Vec::with_capacity(line.lanes.len()),
            swaps: 0,
        }
    }

    fn reset(&mut self, line: &Line<'_>, random: &mut RandomSource) {
        self.means.draw(random);
        self.slots.clear();
        self.held.clear();
        self.places.clear();
        self.swaps = 0;
        for (number, worker) in line.workers.iter().enumerate() {
            self.held.push(worker.loaded);
            let capacity = worker.concurrency.max(worker.running.len()).max(1);
            for place in 0..capacity.min(LINE_SLOTS) {
                let mut free_s = 0.0;
                if let Some(work) = worker.running.get(place) {
                    let level = random.unit();
                    let end_s = work.remaining(level, random);
                    self.places.push(end_s);
                    free_s = end_s + line.turnaround_s;
                }
                self.slots.push(LineSlot { free_s, worker: number });
            }
        }
        self.slots.truncate(LINE_SLOTS);
        if let Some(limit) = line.limit {
            self.places.resize(limit.clamp(1, LINE_SLOTS), 0.0);
        }
        self.taken.clear();
        self.taken.resize(line.lanes.len(), 0);
        self.next_arrival_s.clear();
        self.arrived.clear();
        for lane in &line.lanes {
            self.next_arrival_s.push(match lane.arrivals.bursts_per_s > 1e-9 {
                true => random.exponential(1.0 / lane.arrivals.bursts_per_s),
                false => f64::INFINITY,
            });
            self.arrived.push(lane.arrivals.size);
        }
    }

    /// The head of a lane. It becomes ready at an infinite time if the lane is empty.
    fn head(&self, line: &Line<'_>, lane: usize) -> Head {
        let entry = match line.lanes[lane].waiting.get(self.taken[lane]) {
            Some(entry) => *entry,
            // The job itself is the last entry of its lane.
            None if lane == line.own.lane => line.own.entry,
            None => LineEntry { ready_s: self.next_arrival_s[lane], order: u128::MAX },
        };
        Head { lane, entry }
    }

    fn until_own_start(&mut self, line: &Line<'_>, random: &mut RandomSource) -> OwnStart {
        let mut tokens = line.rate.map_or((0.0, 0.0), |rate| (rate.tokens, 0.0));
        for _ in 0..STARTS_MAX {
            let Some(slot) = self.earliest() else { break };
            let (now_s, worker) = (self.slots[slot].free_s, self.slots[slot].worker);
            self.heads.clear();
            let mut next_ready_s = f64::INFINITY;
            for lane in (0..line.lanes.len()).filter(|lane| line.workers[worker].serves[*lane]) {
                let head = self.head(line, lane);
                if head.entry.ready_s <= now_s {
                    self.heads.push(head);
                } else {
                    next_ready_s = next_ready_s.min(head.entry.ready_s);
                }
            }
            let held = self.held[worker];
            let Some((affinity, swap)) = next_affinity(&self.heads, line, held, now_s) else {
                if next_ready_s.is_finite() {
                    self.slots[slot].free_s = next_ready_s;
                } else {
                    self.slots.swap_remove(slot);
                }
                continue;
            };
            let top = self.heads.iter().map(|head| line.lanes[head.lane].priority).max();
            let fits = |head: &&Head| {
                let lane = &line.lanes[head.lane];
                Some(lane.priority) == top && (lane.affinity.is_none() || lane.affinity == affinity)
            };
            let oldest = self.heads.iter().filter(fits).copied().reduce(|oldest, head| {
                match head.entry.is_older(oldest.entry) {
                    true => head,
                    false => oldest,
                }
            });
            let Some(Head { lane, .. }) = oldest else { break };
            let is_entry = self.taken[lane] < line.lanes[lane].waiting.len();
            let is_own = !is_entry && lane == line.own.lane;
            let mut start_s = now_s;
            // A worker loads another affinity when its running jobs have ended.
            if swap {
                let busy = self.slots.iter().filter(|slot| slot.worker == worker).map(|slot| slot.free_s);
                start_s = busy.fold(start_s, f64::max);
            }
            let block = match (is_entry, is_own) {
                (true, _) => line.lanes[lane].block,
                (false, true) => 1.0,
                (false, false) => (line.lanes[lane].arrivals.size / LINE_ENTRIES as f64).max(1.0),
            };
            start_s = self.within_rate(line, start_s, block, &mut tokens);
            let place = self.free_place(line);
            if let Some(place) = place {
                start_s = start_s.max(self.places[place]);
            }
            let load_s = match (swap, line.lanes[lane].load) {
                (true, Some(load)) => load.draw(random) * self.means.of_load(lane),
                _ => 0.0,
            };
            if swap {
                self.swaps += u32::from(line.lanes[lane].load.is_some() || held.is_some());
                self.held[worker] = affinity;
                let ready_s = start_s + load_s;
                self.slots.iter_mut().filter(|slot| slot.worker == worker).for_each(|slot| slot.free_s = ready_s);
            }
            if is_own {
                return OwnStart { at_s: start_s + load_s, swaps: self.swaps };
            }
            let run_s = duration_of(line.lanes[lane].run, block, random) * self.means.of_run(lane);
            let end_s = start_s + load_s + run_s + (block - 1.0) * line.turnaround_s;
            self.slots[slot].free_s = end_s + line.turnaround_s;
            if let Some(place) = place {
                self.places[place] = end_s;
            }
            if is_entry {
                self.taken[lane] += 1;
            } else {
                self.arrived[lane] -= block;
                if self.arrived[lane] < 1.0 {
                    let Arrivals { bursts_per_s, size } = line.lanes[lane].arrivals;
                    // The mean size is not a whole number.
                    self.arrived[lane] += size;
                    self.next_arrival_s[lane] += random.exponential(1.0 / bursts_per_s);
                }
            }
        }
        // The bound was reached: jobs that overtake arrive faster than they are run. The wait is at least this long.
        let at_s = self.slots.iter().map(|slot| slot.free_s).fold(0.0, f64::max);
        OwnStart { at_s, swaps: self.swaps }
    }

    fn earliest(&self) -> Option<usize> {
        let slots = self.slots.iter().enumerate();
        slots.min_by(|one, other| one.1.free_s.total_cmp(&other.1.free_s)).map(|(number, _)| number)
    }

    fn free_place(&self, line: &Line<'_>) -> Option<usize> {
        line.limit?;
        let places = self.places.iter().enumerate();
        places.min_by(|one, other| one.1.total_cmp(other.1)).map(|(number, _)| number)
    }

    /// The first moment from `start_s` at which the rate limit lets a block of jobs start.
    fn within_rate(&self, line: &Line<'_>, start_s: f64, block: f64, tokens: &mut (f64, f64)) -> f64 {
        let Some(rate) = line.rate else { return start_s };
        let (mut left, at_s) = *tokens;
        let start_s = start_s.max(at_s);
        left = (left + (start_s - at_s) * rate.per_s).min(rate.per_s.max(1.0));
        let delay_s = ((block - left) / rate.per_s).max(0.0);
        *tokens = (left + delay_s * rate.per_s - block, start_s + delay_s);
        start_s + delay_s
    }
}

/// The duration of a block of jobs, one after the other.
fn duration_of(run: &Durations, block: f64, random: &mut RandomSource) -> f64 {
    if block <= 1.0 {
        return run.draw_sample(random);
    }
    (run.mean_s() * block + run.deviation_s() * block.sqrt() * random.normal()).max(LEAST_S)
}

#[cfg(test)]
mod tests;
