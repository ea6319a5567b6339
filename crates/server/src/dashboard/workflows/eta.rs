//! The estimate of a run: the longest chain of nodes that have not ended, from the run times of their kinds.
//!
//! It assumes that a worker is free for every node, so that a run on busy queues takes longer.

use std::collections::{BTreeSet, HashMap};

use domain::limits::RUN_ETA_KINDS;
use domain::{Name, RunState, Time};
use store::signals::duration_statistics::StatisticsKey;
use store::workflows::runs::{Run, RunNode};
use wire::EtaRange;

use crate::access::auth::Principal;
use crate::error::ApiError;
use crate::state::AppState;

/// `None` for a run that has ended, or if a kind has no statistics.
pub(super) async fn eta(
    state: &AppState,
    principal: &Principal,
    run: &Run,
    nodes: &[RunNode],
) -> Result<Option<EtaRange>, ApiError> {
    let open = nodes.iter().filter(|node| !node.state.is_terminal());
    let kinds: BTreeSet<&str> = open.map(|node| node.kind.as_str()).collect();
    if run.state != RunState::Running || kinds.is_empty() || kinds.len() > RUN_ETA_KINDS {
        return Ok(None);
    }
    let keys: Vec<StatisticsKey> = kinds.iter().map(|kind| (Name::stored(kind), None)).collect();
    let statistics = state.store.duration_statistics(principal.tenant, keys).await?;
    let now = state.store.clock().now();
    let remaining_s = |node: &RunNode, share: f64| {
        let run = statistics.get(&(Name::stored(&node.kind), None))?.run.as_ref()?;
        Some(match node.started_at.filter(|_| node.state.is_claimed()) {
            Some(started_at) => run.remaining(seconds(started_at, now), share),
            None => run.quantile(share),
        })
    };
    let chain = |share| longest_chain_s(nodes, &|node| remaining_s(node, share));
    Ok(chain(0.5).zip(chain(0.9)).map(|(p50, p90)| EtaRange { p50, p90 }))
}

fn seconds(from: Time, to: Time) -> f64 {
    to.ms_since(from).max(0) as f64 / 1_000.0
}

/// The length of the longest chain of nodes that have not ended. `None` if the length of a node is unknown.
fn longest_chain_s(nodes: &[RunNode], length_s: &dyn Fn(&RunNode) -> Option<f64>) -> Option<f64> {
    let open: Vec<&RunNode> = nodes.iter().filter(|node| !node.state.is_terminal()).collect();
    let index: HashMap<&str, usize> =
        open.iter().enumerate().filter_map(|(at, node)| Some((node.name.as_deref()?, at))).collect();
    let mut ends_s: Vec<Option<f64>> = vec![None; open.len()];
    let mut longest_s: Option<f64> = None;
    for start in 0..open.len() {
        // The graph has no cycle. A node is computed after the nodes that it needs.
        let mut stack = vec![start];
        while let Some(at) = stack.pop() {
            if ends_s[at].is_some() {
                continue;
            }
            let needs = || open[at].needs.iter().filter_map(|need| index.get(need.as_str()).copied());
            let missing: Vec<usize> = needs().filter(|need| ends_s[*need].is_none()).collect();
            if !missing.is_empty() {
                stack.push(at);
                stack.extend(missing);
                continue;
            }
            let ready_s = needs().filter_map(|need| ends_s[need]).fold(0.0, f64::max);
            ends_s[at] = Some(ready_s + length_s(open[at])?);
        }
        longest_s = longest_s.into_iter().chain(ends_s[start]).reduce(f64::max);
    }
    longest_s
}

#[cfg(test)]
mod tests {
    use domain::{JobId, JobState, NeedCondition};

    use super::*;

    fn node(name: &str, needs: &[&str], state: JobState) -> RunNode {
        RunNode {
            name: Some(name.to_owned()),
            job: JobId::new(uuid::Uuid::nil()),
            queue: "q".into(),
            kind: name.into(),
            state,
            attempt: 0,
            condition: NeedCondition::default(),
            needs: needs.iter().map(|need| (*need).to_owned()).collect(),
            phase: None,
            progress: None,
            error: None,
            created_at: Time::from_micros(0),
            started_at: None,
            finished_at: None,
        }
    }

    #[test]
    fn the_longest_chain_counts_what_has_not_ended() {
        let nodes = [
            node("join", &["slow", "fast"], JobState::Waiting),
            node("split", &[], JobState::Succeeded),
            node("slow", &["split"], JobState::Queued),
            node("fast", &["split"], JobState::Queued),
        ];
        let length_s = |node: &RunNode| Some(if node.kind == "slow" { 9.0 } else { 2.0 });
        assert_eq!(longest_chain_s(&nodes, &length_s), Some(11.0));
        assert_eq!(longest_chain_s(&nodes, &|node| (node.kind != "fast").then_some(1.0)), None);
        assert_eq!(longest_chain_s(&nodes[1..2], &length_s), None);
    }
}
