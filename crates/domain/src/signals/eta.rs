//! ETA of a job, by Monte Carlo simulation over the durations of earlier jobs of its kind.
//!
//! Each run simulates the queue: busy slots become free after the remaining time of their jobs, the jobs ahead are
//! claimed in order, a slot that needs another model loads it, and then the job itself runs. The ETA is the median and
//! the 90th percentile over all runs. Without history there is no ETA.

use crate::signals::signal::Eta;
use crate::signals::sketch::Sketch;

/// Minimum sample weight for a statistic.
pub const MIN_SAMPLES: f64 = 5.0;
const RUNS: usize = 200;
const TABLE: usize = 128;
/// Jobs ahead that are simulated individually. For more, their total is drawn.
const SIMULATED_AHEAD: usize = 48;
const SIMULATED_SLOTS: usize = 256;

/// The durations of one kind of work, as evenly spaced quantiles.
#[derive(Clone, Debug, PartialEq)]
pub struct Durations {
    table: Vec<f64>,
    mean_s: f64,
    deviation_s: f64,
}

impl Durations {
    /// `None` if there are fewer than `MIN_SAMPLES` samples.
    pub fn of(sketch: &Sketch) -> Option<Self> {
        if sketch.weight() < MIN_SAMPLES {
            return None;
        }
        let table = sketch.table(TABLE);
        let mean_s = table.iter().sum::<f64>() / TABLE as f64;
        let variance = table.iter().map(|sample| (sample - mean_s).powi(2)).sum::<f64>() / TABLE as f64;
        Some(Self { table, mean_s, deviation_s: variance.sqrt() })
    }

    fn draw(&self, random: &mut RandomSource) -> f64 {
        self.table[random.below(self.table.len())]
    }

    /// Draws the remaining time of a job that has run for `elapsed_s`, from the jobs that took longer.
    fn draw_remaining(&self, elapsed_s: f64, random: &mut RandomSource) -> f64 {
        let first = self.table.partition_point(|sample| *sample <= elapsed_s);
        match self.table.get(first..) {
            Some(longer) if !longer.is_empty() => longer[random.below(longer.len())] - elapsed_s,
            // It has run longer than any job before: assume a tenth of the longest duration.
            _ => self.table[TABLE - 1] * 0.1,
        }
    }
}

/// A slot that is running a job.
#[derive(Clone, Copy, Debug)]
pub struct BusySlot<'a> {
    pub durations: &'a Durations,
    pub elapsed_s: f64,
}

/// The input of the simulation.
#[derive(Clone, Debug)]
pub struct QueueForecast<'a> {
    /// Concurrent jobs; at least one.
    pub slots: usize,
    pub busy: Vec<BusySlot<'a>>,
    /// The jobs ahead: counts per distribution of durations.
    pub ahead: Vec<(&'a Durations, u64)>,
    pub own: &'a Durations,
    /// The load time of the model that the job needs, unless it is loaded.
    pub load: Option<&'a Durations>,
    /// Seconds until the job's `run_at`.
    pub not_before_s: f64,
}

impl QueueForecast<'_> {
    pub fn eta(&self, seed: u64) -> Eta {
        let mut random = RandomSource(seed | 1);
        let mut done: Vec<f64> = (0..RUNS).map(|_| self.simulate(&mut random)).collect();
        done.sort_by(f64::total_cmp);
        Eta { p50_s: done[RUNS / 2], p90_s: done[RUNS * 9 / 10] }
    }

    fn simulate(&self, random: &mut RandomSource) -> f64 {
        let slots = self.slots.clamp(1, SIMULATED_SLOTS);
        let mut free: Vec<f64> =
            self.busy.iter().take(slots).map(|busy| busy.durations.draw_remaining(busy.elapsed_s, random)).collect();
        free.resize(slots, 0.0);
        let total: u64 = self.ahead.iter().map(|(_, count)| count).sum();
        if total as usize <= SIMULATED_AHEAD {
            // In the likely claim order: always from the kind with most jobs left.
            let mut queued: Vec<(&Durations, u64)> = self.ahead.clone();
            while let Some(next) = queued.iter_mut().filter(|(_, count)| *count > 0).max_by_key(|(_, count)| *count) {
                next.1 -= 1;
                let took = next.0.draw(random);
                *earliest(&mut free) += took;
            }
        } else {
            // For many jobs only the sum matters, and it is normally distributed.
            let share = |(durations, count): &(&Durations, u64)| {
                let count = *count as f64;
                (durations.mean_s * count, durations.deviation_s.powi(2) * count)
            };
            let (mean, variance) =
                self.ahead.iter().map(share).fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            let work = (mean + variance.sqrt() * random.normal()).max(0.0);
            free.iter_mut().for_each(|slot| *slot += work / slots as f64);
        }
        let begin = earliest(&mut free).max(self.not_before_s);
        begin + self.load.map_or(0.0, |load| load.draw(random)) + self.own.draw(random)
    }
}

fn earliest(free: &mut [f64]) -> &mut f64 {
    free.iter_mut().min_by(|one, other| one.total_cmp(other)).expect("there is at least one slot")
}

/// The remaining time of a running job, from the jobs that took longer. `None` if fewer than three did.
pub fn remaining(own: &Durations, elapsed_s: f64) -> Option<Eta> {
    let first = own.table.partition_point(|sample| *sample <= elapsed_s);
    let longer = own.table.get(first..).filter(|longer| longer.len() >= 3)?;
    let at = |share: f64| longer[((longer.len() - 1) as f64 * share).round() as usize] - elapsed_s;
    Some(Eta { p50_s: at(0.5), p90_s: at(0.9) })
}

/// A small, fast, seeded generator. Two readers of the same signal get the same ETA.
struct RandomSource(u64);

impl RandomSource {
    fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, most: usize) -> usize {
        (self.next() % most as u64) as usize
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        let (a, b) = (self.unit().max(1e-12), self.unit());
        (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
    }
}

/// ETA accuracy: how many ETAs were followed by an end, and how many ends were within them. Old samples fade.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Calibration {
    pub answers: f64,
    pub within_p50: f64,
    pub within_p90: f64,
}

impl Calibration {
    pub fn add(&mut self, predicted: Eta, took_s: f64) {
        const ANSWERS_MAX: f64 = 1_000.0;
        if self.answers >= ANSWERS_MAX {
            let fade = (ANSWERS_MAX - 1.0) / ANSWERS_MAX;
            self.answers *= fade;
            self.within_p50 *= fade;
            self.within_p90 *= fade;
        }
        self.answers += 1.0;
        self.within_p50 += f64::from(took_s <= predicted.p50_s);
        self.within_p90 += f64::from(took_s <= predicted.p90_s);
    }

    /// The shares of ends within the p50 and the p90. `None` if there are too few samples.
    pub fn shares(&self) -> Option<(f64, f64)> {
        (self.answers >= MIN_SAMPLES).then(|| (self.within_p50 / self.answers, self.within_p90 / self.answers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An exponential distribution, as its quantiles.
    fn exponential(mean_s: f64) -> Durations {
        let mut sketch = Sketch::default();
        (0..1_000).for_each(|n| sketch.add(-mean_s * (1.0 - (f64::from(n) + 0.5) / 1_000.0).ln()));
        Durations::of(&sketch).expect("there are samples")
    }

    fn draw(mean_s: f64, random: &mut RandomSource) -> f64 {
        -mean_s * (1.0 - random.unit()).ln()
    }

    /// Simulates a queue with exact draws and counts how often the ETA held.
    fn coverage(slots: usize, ahead: u64) -> (f64, f64) {
        let own = exponential(10.0);
        let mut random = RandomSource(7);
        let mut calibration = Calibration::default();
        for round in 0..2_000 {
            let mut free: Vec<f64> = (0..slots).map(|_| draw(10.0, &mut random)).collect();
            let busy = (0..slots).map(|_| BusySlot { durations: &own, elapsed_s: 3.0 }).collect();
            let forecast =
                QueueForecast { slots, busy, ahead: vec![(&own, ahead)], own: &own, load: None, not_before_s: 0.0 };
            let predicted = forecast.eta(round);
            for _ in 0..ahead {
                *earliest(&mut free) += draw(10.0, &mut random);
            }
            let took = *earliest(&mut free) + draw(10.0, &mut random);
            calibration.add(predicted, took);
        }
        calibration.shares().expect("there are samples")
    }

    /// Requirement S9.
    #[test]
    fn eta_percentiles_are_calibrated_within_five_points() {
        for (slots, ahead) in [(1, 0), (1, 5), (4, 10), (2, 40), (4, 200)] {
            let (p50, p90) = coverage(slots, ahead);
            assert!((p50 - 0.5).abs() < 0.05, "{slots} slots, {ahead} ahead: p50 covers {p50}");
            assert!((p90 - 0.9).abs() < 0.05, "{slots} slots, {ahead} ahead: p90 covers {p90}");
        }
    }

    /// Requirement S9.
    #[test]
    fn fewer_than_five_samples_give_no_estimate() {
        let mut sketch = Sketch::default();
        (0..4).for_each(|_| sketch.add(1.0));
        assert_eq!(Durations::of(&sketch), None);
        sketch.add(1.0);
        assert!(Durations::of(&sketch).is_some());
    }

    /// Requirement S9.
    #[test]
    fn a_job_that_runs_longer_than_all_samples_has_no_eta() {
        let own = exponential(10.0);
        assert!(remaining(&own, 5.0).is_some_and(|eta| eta.p50_s > 3.0 && eta.p90_s > eta.p50_s));
        assert_eq!(remaining(&own, 1_000.0), None);
    }

    /// Requirement S9.
    #[test]
    fn the_eta_includes_the_load_time_of_a_model() {
        let own = exponential(1.0);
        let load = exponential(60.0);
        let forecast =
            |load| QueueForecast { slots: 1, busy: vec![], ahead: vec![], own: &own, load, not_before_s: 0.0 };
        assert!(forecast(Some(&load)).eta(1).p50_s > 20.0 * forecast(None).eta(1).p50_s);
    }
}
