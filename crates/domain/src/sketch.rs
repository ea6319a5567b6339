//! A distribution of durations in little room: counts in buckets that grow by 2 %, so that a quantile is right within 1 %.
//!
//! Two sketches add up to the sketch of both, on any node in any order. Old samples fade: past a weight of a thousand
//! every new sample takes from the old ones, so that a kind that became faster is soon known to be fast.

use std::collections::BTreeMap;

/// Each bucket is this much wider than the one before.
const GROWTH: f64 = 1.02;
/// Shorter than this is the same to everybody.
const LEAST_S: f64 = 0.001;
/// How many samples are remembered, so to speak.
const WEIGHT_MAX: f64 = 1_000.0;
/// A bucket with less than this is forgotten.
const WEIGHT_LEAST: f64 = 0.01;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sketch {
    buckets: BTreeMap<i32, f64>,
    weight: f64,
}

impl Sketch {
    pub fn from_buckets(buckets: impl IntoIterator<Item = (i32, f64)>) -> Self {
        let buckets: BTreeMap<i32, f64> =
            buckets.into_iter().filter(|(_, weight)| weight.is_finite() && *weight > 0.0).collect();
        let weight = buckets.values().sum();
        Self { buckets, weight }
    }

    pub fn buckets(&self) -> impl Iterator<Item = (i32, f64)> {
        self.buckets.iter().map(|(bucket, weight)| (*bucket, *weight))
    }

    /// How many samples it stands for, old ones counting less.
    pub fn weight(&self) -> f64 {
        self.weight
    }

    pub fn add(&mut self, seconds: f64) {
        *self.buckets.entry(bucket(seconds)).or_default() += 1.0;
        self.weight += 1.0;
        if self.weight > WEIGHT_MAX {
            self.fade(WEIGHT_MAX / self.weight);
        }
    }

    pub fn merge(&mut self, other: &Self) {
        for (bucket, weight) in &other.buckets {
            *self.buckets.entry(*bucket).or_default() += weight;
        }
        self.weight += other.weight;
        if self.weight > WEIGHT_MAX {
            self.fade(WEIGHT_MAX / self.weight);
        }
    }

    /// Makes every sample count for less.
    pub fn fade(&mut self, factor: f64) {
        self.buckets.values_mut().for_each(|weight| *weight *= factor);
        self.buckets.retain(|_, weight| *weight >= WEIGHT_LEAST);
        self.weight = self.buckets.values().sum();
    }

    /// The duration below which the given share of the samples lies; nothing without samples.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let wanted = share.clamp(0.0, 1.0) * self.weight;
        let mut seen = 0.0;
        for (bucket, weight) in &self.buckets {
            seen += weight;
            if seen >= wanted {
                return Some(value(*bucket));
            }
        }
        self.buckets.keys().next_back().map(|bucket| value(*bucket))
    }

    /// Evenly spread quantiles, so that a random one is a sample of the distribution.
    pub fn table(&self, entries: usize) -> Vec<f64> {
        let mut table = Vec::with_capacity(entries);
        let mut buckets = self.buckets.iter();
        let (mut seen, mut current) = (0.0, LEAST_S);
        for entry in 0..entries {
            let wanted = (entry as f64 + 0.5) / entries as f64 * self.weight;
            while seen < wanted {
                let Some((bucket, weight)) = buckets.next() else { break };
                seen += weight;
                current = value(*bucket);
            }
            table.push(current);
        }
        table
    }
}

fn bucket(seconds: f64) -> i32 {
    (seconds.max(LEAST_S).ln() / GROWTH.ln()).round() as i32
}

fn value(bucket: i32) -> f64 {
    GROWTH.powi(bucket)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn s9_quantiles_are_right_within_one_percent() {
        let mut sketch = Sketch::default();
        (1..=999).for_each(|n| sketch.add(f64::from(n)));
        for (share, expected) in [(0.5, 500.0), (0.9, 900.0), (0.99, 990.0)] {
            let told = sketch.quantile(share).expect("there are samples");
            assert!((told / expected - 1.0).abs() < 0.015, "{share}: {told}");
        }
        assert_eq!(Sketch::default().quantile(0.5), None);
    }

    #[test]
    fn s9_what_changed_is_soon_believed() {
        let mut sketch = Sketch::default();
        (0..5_000).for_each(|_| sketch.add(100.0));
        (0..1_500).for_each(|_| sketch.add(1.0));
        assert!(sketch.quantile(0.5).expect("there are samples") < 1.1);
    }

    proptest! {
        #[test]
        fn s9_parts_add_up_to_the_whole(samples in prop::collection::vec(0.001f64..1e6, 1..300), cut in 0usize..300) {
            let of = |samples: &[f64]| {
                let mut sketch = Sketch::default();
                samples.iter().for_each(|sample| sketch.add(*sample));
                sketch
            };
            let cut = cut.min(samples.len());
            let mut parts = of(&samples[..cut]);
            parts.merge(&of(&samples[cut..]));
            prop_assert_eq!(&parts, &of(&samples));
            prop_assert_eq!(Sketch::from_buckets(parts.buckets()), parts);
        }
    }
}
