//! A compact sketch of a distribution of durations: a histogram with exponential buckets (2 % wide), so that quantiles
//! are accurate within 1 %.
//!
//! Sketches can be merged in any order, on any node. Old samples fade: beyond a total weight of 1000, each new sample
//! reduces the weight of the old ones, so that the sketch follows changes.

use std::collections::BTreeMap;

/// The ratio of the widths of neighboring buckets.
const GROWTH: f64 = 1.02;
/// Shorter durations are counted as this one.
const LEAST_S: f64 = 0.001;
/// Maximum total weight. Further samples fade the existing ones.
const WEIGHT_MAX: f64 = 1_000.0;
/// Buckets with less weight are removed.
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

    /// Total weight of the samples, after fading.
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

    /// Multiplies the weight of every sample by `factor`.
    pub fn fade(&mut self, factor: f64) {
        self.buckets.values_mut().for_each(|weight| *weight *= factor);
        self.buckets.retain(|_, weight| *weight >= WEIGHT_LEAST);
        self.weight = self.buckets.values().sum();
    }

    /// The duration below which the given share of the samples lies. `None` without samples.
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

    /// The value of each bucket with the weight of the samples up to it, ascending.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, f64)> {
        self.buckets.iter().scan(0.0, |sum, (bucket, weight)| {
            *sum += weight;
            Some((value(*bucket), *sum))
        })
    }

    /// Evenly spaced quantiles, so that a random entry is a sample of the distribution.
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

    /// Requirement S9.
    #[test]
    fn sketch_quantiles_are_accurate_to_1_5_percent() {
        let mut sketch = Sketch::default();
        (1..=999).for_each(|n| sketch.add(f64::from(n)));
        for (share, expected) in [(0.5, 500.0), (0.9, 900.0), (0.99, 990.0)] {
            let quantile = sketch.quantile(share).expect("there are samples");
            assert!((quantile / expected - 1.0).abs() < 0.015, "{share}: {quantile}");
        }
        assert_eq!(Sketch::default().quantile(0.5), None);
    }

    /// Requirement S9.
    #[test]
    fn a_sketch_adapts_quickly_to_new_samples() {
        let mut sketch = Sketch::default();
        (0..5_000).for_each(|_| sketch.add(100.0));
        (0..1_500).for_each(|_| sketch.add(1.0));
        assert!(sketch.quantile(0.5).expect("there are samples") < 1.1);
    }

    proptest! {
        /// Requirement S9.
        #[test]
        fn merged_sketches_equal_a_sketch_of_all_samples(samples in prop::collection::vec(0.001f64..1e6, 1..300), cut in 0usize..300) {
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
