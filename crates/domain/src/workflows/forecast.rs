//! Forecasts the end of a run: the run is simulated many times with drawn durations.
//!
//! A node starts when its needs have ended and a slot of its workers is free. Jobs of other runs are not simulated, so the
//! forecast of a run that shares its workers is too early.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use crate::limits::{RUN_FORECAST_NODES, RUN_FORECAST_ROUNDS};
use crate::signals::eta::durations::Durations;
use crate::signals::eta::random::RandomSource;
use crate::signals::signal::Eta;

/// A node that has not ended.
#[derive(Clone, Debug)]
pub struct ForecastNode<'a> {
    /// Indexes of the nodes that it needs and that have not ended.
    pub needs: Vec<usize>,
    pub durations: &'a Durations,
    /// How long it has run. `None`: it has not started.
    pub elapsed_s: Option<f64>,
    /// Index of the slots that it needs one of.
    pub slots: usize,
}

/// Seconds as a key of a heap.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Seconds(f64);

impl Eq for Seconds {}

impl PartialOrd for Seconds {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Seconds {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Returns when the last node ends, in seconds from now. `slots` are the numbers of jobs that run at the same time.
/// `None` if a node has no slot.
pub fn forecast(nodes: &[ForecastNode<'_>], slots: &[u64], seed: u64) -> Option<Eta> {
    if nodes.is_empty() || nodes.iter().any(|node| slots[node.slots] == 0) {
        return None;
    }
    let mut random = RandomSource::new(seed);
    let rounds = (RUN_FORECAST_NODES / nodes.len()).clamp(10, RUN_FORECAST_ROUNDS);
    let mut ends: Vec<f64> = (0..rounds).map(|_| simulate(nodes, slots, &mut random)).collect();
    ends.sort_by(f64::total_cmp);
    let at = |share: f64| ends[((rounds - 1) as f64 * share).round() as usize];
    Some(Eta { p50_s: at(0.5), p90_s: at(0.9) })
}

/// Runs the nodes once. Returns the end of the last one.
fn simulate(nodes: &[ForecastNode<'_>], slots: &[u64], random: &mut RandomSource) -> f64 {
    let mut needed_by: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    let mut unmet: Vec<usize> = vec![0; nodes.len()];
    for (number, node) in nodes.iter().enumerate() {
        unmet[number] = node.needs.len();
        node.needs.iter().for_each(|need| needed_by[*need].push(number));
    }
    let mut starts: Vec<f64> = vec![0.0; nodes.len()];
    // Running nodes first: they hold a slot already.
    let first = |node: usize| Reverse((Seconds(0.0), nodes[node].elapsed_s.is_none(), node));
    let mut ready: BinaryHeap<_> = (0..nodes.len()).filter(|node| unmet[*node] == 0).map(first).collect();
    // More slots than nodes are never used.
    let mut free: Vec<BinaryHeap<Reverse<Seconds>>> = slots
        .iter()
        .map(|count| (0..(*count).min(nodes.len() as u64)).map(|_| Reverse(Seconds(0.0))).collect())
        .collect();
    let mut last: f64 = 0.0;
    while let Some(Reverse((Seconds(at), _, number))) = ready.pop() {
        let node = &nodes[number];
        let Reverse(Seconds(slot_at)) = free[node.slots].pop().expect("a slot exists");
        let duration_s = match node.elapsed_s {
            Some(elapsed_s) => node.durations.remaining(elapsed_s, random.unit()),
            None => node.durations.draw(random),
        };
        let end = at.max(slot_at) + duration_s;
        free[node.slots].push(Reverse(Seconds(end)));
        last = last.max(end);
        for next in &needed_by[number] {
            starts[*next] = starts[*next].max(end);
            unmet[*next] -= 1;
            if unmet[*next] == 0 {
                ready.push(Reverse((Seconds(starts[*next]), true, *next)));
            }
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each node takes from 9 to 11 seconds.
    fn check(needs: &[&[usize]], slots: u64) -> Option<(f64, f64)> {
        let durations = Durations::from_table((0..101).map(|step| 9.0 + f64::from(step) * 0.02).collect(), 1e9);
        let node =
            |needs: &&[usize]| ForecastNode { needs: needs.to_vec(), durations: &durations, elapsed_s: None, slots: 0 };
        let nodes: Vec<_> = needs.iter().map(node).collect();
        forecast(&nodes, &[slots], 7).map(|eta| (eta.p50_s.round(), eta.p90_s.round()))
    }

    #[test]
    fn a_chain_takes_the_sum_and_parallel_nodes_the_longest() {
        assert_eq!(check(&[&[], &[0], &[1]], 9), Some((30.0, 31.0)));
        assert_eq!(check(&[&[], &[], &[]], 9), Some((11.0, 11.0)));
        let (joined, _) = check(&[&[], &[], &[], &[0, 1, 2]], 9).expect("a forecast");
        assert!((20.0..=21.0).contains(&joined), "{joined}");
    }

    #[test]
    fn nodes_wait_for_a_free_slot() {
        assert_eq!(check(&[&[], &[], &[]], 1).map(|(p50, _)| p50), Some(30.0));
        assert_eq!(check(&[&[], &[], &[], &[]], 2).map(|(p50, _)| p50), Some(20.0));
        assert_eq!(check(&[&[]], 0), None, "no worker serves the node");
    }

    #[test]
    fn a_running_node_needs_the_rest_of_its_time() {
        let durations = Durations::from_table(vec![10.0; 100], 1e9);
        let node = |elapsed_s| ForecastNode { needs: Vec::new(), durations: &durations, elapsed_s, slots: 0 };
        let eta = forecast(&[node(Some(8.0)), node(None)], &[1], 1).expect("a forecast");
        assert_eq!(eta.p50_s.round(), 12.0);
    }
}
