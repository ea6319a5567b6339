//! When a job will be done (S9), from how long its like took before.
//!
//! The line is played out many times: places that are taken come free after what is left of their jobs, those ahead are
//! taken in turn, a place that must load another model takes as long as loads have taken, and then the job itself runs.
//! The answer is the middle and the ninth tenth of all those plays. What there is no history for is not guessed: then
//! there is no answer.

use crate::signal::Eta;
use crate::sketch::Sketch;

/// Fewer samples than this say nothing.
pub const SAMPLES_LEAST: f64 = 5.0;
const PLAYS: usize = 200;
const TABLE: usize = 128;
/// Jobs ahead that are played one by one; of more, the sum is drawn.
const AHEAD_PLAYED: usize = 48;
const PLACES_PLAYED: usize = 256;

/// How long one kind of work takes: quantiles, evenly spread.
#[derive(Clone, Debug, PartialEq)]
pub struct Durations {
    table: Vec<f64>,
    mean_s: f64,
    deviation_s: f64,
}

impl Durations {
    /// Nothing when there are too few samples to speak of.
    pub fn of(sketch: &Sketch) -> Option<Self> {
        if sketch.weight() < SAMPLES_LEAST {
            return None;
        }
        let table = sketch.table(TABLE);
        let mean_s = table.iter().sum::<f64>() / TABLE as f64;
        let variance = table.iter().map(|sample| (sample - mean_s).powi(2)).sum::<f64>() / TABLE as f64;
        Some(Self { table, mean_s, deviation_s: variance.sqrt() })
    }

    fn draw(&self, dice: &mut Dice) -> f64 {
        self.table[dice.below(self.table.len())]
    }

    /// What is left of a job that has run for `elapsed_s`: those that took longer, less what has passed.
    fn draw_rest(&self, elapsed_s: f64, dice: &mut Dice) -> f64 {
        let first = self.table.partition_point(|sample| *sample <= elapsed_s);
        match self.table.get(first..) {
            Some(longer) if !longer.is_empty() => longer[dice.below(longer.len())] - elapsed_s,
            // Longer than any before: as if it had just begun its last tenth.
            _ => self.table[TABLE - 1] * 0.1,
        }
    }
}

/// A place that is taken now.
#[derive(Clone, Copy, Debug)]
pub struct Busy<'a> {
    pub durations: &'a Durations,
    pub elapsed_s: f64,
}

/// All that a waiting job's time depends on.
#[derive(Clone, Debug)]
pub struct Outlook<'a> {
    /// Jobs that can run at once: at least one.
    pub places: usize,
    pub busy: Vec<Busy<'a>>,
    /// Those ahead: how many of which durations.
    pub ahead: Vec<(&'a Durations, u64)>,
    pub own: &'a Durations,
    /// How long the model it needs takes to load, when it is not loaded.
    pub load: Option<&'a Durations>,
    /// Until it may run at all.
    pub not_before_s: f64,
}

impl Outlook<'_> {
    pub fn eta(&self, seed: u64) -> Eta {
        let mut dice = Dice(seed | 1);
        let mut done: Vec<f64> = (0..PLAYS).map(|_| self.play(&mut dice)).collect();
        done.sort_by(f64::total_cmp);
        Eta { p50_s: done[PLAYS / 2], p90_s: done[PLAYS * 9 / 10] }
    }

    fn play(&self, dice: &mut Dice) -> f64 {
        let places = self.places.clamp(1, PLACES_PLAYED);
        let mut free: Vec<f64> =
            self.busy.iter().take(places).map(|busy| busy.durations.draw_rest(busy.elapsed_s, dice)).collect();
        free.resize(places, 0.0);
        let total: u64 = self.ahead.iter().map(|(_, count)| count).sum();
        if total as usize <= AHEAD_PLAYED {
            // In the order in which they are likely to be taken: of each kind in turn.
            let mut left: Vec<(&Durations, u64)> = self.ahead.clone();
            while let Some(next) = left.iter_mut().filter(|(_, count)| *count > 0).max_by_key(|(_, count)| *count) {
                next.1 -= 1;
                let took = next.0.draw(dice);
                *earliest(&mut free) += took;
            }
        } else {
            // Of many, only the sum matters, and a sum of many is normal.
            let share = |(durations, count): &(&Durations, u64)| {
                let count = *count as f64;
                (durations.mean_s * count, durations.deviation_s.powi(2) * count)
            };
            let (mean, variance) =
                self.ahead.iter().map(share).fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            let work = (mean + variance.sqrt() * dice.normal()).max(0.0);
            free.iter_mut().for_each(|place| *place += work / places as f64);
        }
        let begin = earliest(&mut free).max(self.not_before_s);
        begin + self.load.map_or(0.0, |load| load.draw(dice)) + self.own.draw(dice)
    }
}

fn earliest(free: &mut [f64]) -> &mut f64 {
    free.iter_mut().min_by(|one, other| one.total_cmp(other)).expect("there is at least one place")
}

/// What is left of a job that runs, from those that took longer; nothing when none did.
pub fn remaining(own: &Durations, elapsed_s: f64) -> Option<Eta> {
    let first = own.table.partition_point(|sample| *sample <= elapsed_s);
    let longer = own.table.get(first..).filter(|longer| longer.len() >= 3)?;
    let at = |share: f64| longer[((longer.len() - 1) as f64 * share).round() as usize] - elapsed_s;
    Some(Eta { p50_s: at(0.5), p90_s: at(0.9) })
}

/// Small, quick and the same for the same seed: two readers of one signal see one answer.
struct Dice(u64);

impl Dice {
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

/// How often what was said held: answers that ended, and those that ended by the time said. Old ones fade.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Calibration {
    pub answers: f64,
    pub within_p50: f64,
    pub within_p90: f64,
}

impl Calibration {
    pub fn add(&mut self, said: Eta, took_s: f64) {
        const ANSWERS_MAX: f64 = 1_000.0;
        if self.answers >= ANSWERS_MAX {
            let fade = (ANSWERS_MAX - 1.0) / ANSWERS_MAX;
            self.answers *= fade;
            self.within_p50 *= fade;
            self.within_p90 *= fade;
        }
        self.answers += 1.0;
        self.within_p50 += f64::from(took_s <= said.p50_s);
        self.within_p90 += f64::from(took_s <= said.p90_s);
    }

    /// The shares of answers within their p50 and p90; nothing when there are too few to tell.
    pub fn shares(&self) -> Option<(f64, f64)> {
        (self.answers >= SAMPLES_LEAST).then(|| (self.within_p50 / self.answers, self.within_p90 / self.answers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An exponential distribution with this mean, as its quantiles.
    fn exponential(mean_s: f64) -> Durations {
        let mut sketch = Sketch::default();
        (0..1_000).for_each(|n| sketch.add(-mean_s * (1.0 - (f64::from(n) + 0.5) / 1_000.0).ln()));
        Durations::of(&sketch).expect("there are samples")
    }

    fn draw(mean_s: f64, dice: &mut Dice) -> f64 {
        -mean_s * (1.0 - dice.unit()).ln()
    }

    /// Plays a line of its own with exact draws and counts how often the answer held.
    fn coverage(places: usize, ahead: u64) -> (f64, f64) {
        let own = exponential(10.0);
        let mut dice = Dice(7);
        let mut calibration = Calibration::default();
        for round in 0..2_000 {
            let mut free: Vec<f64> = (0..places).map(|_| draw(10.0, &mut dice)).collect();
            let busy = (0..places).map(|_| Busy { durations: &own, elapsed_s: 3.0 }).collect();
            let outlook =
                Outlook { places, busy, ahead: vec![(&own, ahead)], own: &own, load: None, not_before_s: 0.0 };
            let said = outlook.eta(round);
            for _ in 0..ahead {
                *earliest(&mut free) += draw(10.0, &mut dice);
            }
            let took = *earliest(&mut free) + draw(10.0, &mut dice);
            calibration.add(said, took);
        }
        calibration.shares().expect("there are answers")
    }

    #[test]
    fn s9_answers_hold_as_often_as_they_say_within_five_points() {
        for (places, ahead) in [(1, 0), (1, 5), (4, 10), (2, 40), (4, 200)] {
            let (p50, p90) = coverage(places, ahead);
            assert!((p50 - 0.5).abs() < 0.05, "{places} places, {ahead} ahead: p50 covers {p50}");
            assert!((p90 - 0.9).abs() < 0.05, "{places} places, {ahead} ahead: p90 covers {p90}");
        }
    }

    #[test]
    fn s9_too_few_samples_say_nothing() {
        let mut sketch = Sketch::default();
        (0..4).for_each(|_| sketch.add(1.0));
        assert_eq!(Durations::of(&sketch), None);
        sketch.add(1.0);
        assert!(Durations::of(&sketch).is_some());
    }

    #[test]
    fn s9_what_runs_longer_than_any_before_has_no_answer() {
        let own = exponential(10.0);
        assert!(remaining(&own, 5.0).is_some_and(|eta| eta.p50_s > 3.0 && eta.p90_s > eta.p50_s));
        assert_eq!(remaining(&own, 1_000.0), None);
    }

    #[test]
    fn s9_a_model_that_must_be_loaded_adds_its_loading() {
        let own = exponential(1.0);
        let load = exponential(60.0);
        let outlook = |load| Outlook { places: 1, busy: vec![], ahead: vec![], own: &own, load, not_before_s: 0.0 };
        assert!(outlook(Some(&load)).eta(1).p50_s > 20.0 * outlook(None).eta(1).p50_s);
    }
}
