//! Views of runs and of the inputs of their jobs.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

use domain::signals::signal::{Eta, about_s};
use domain::{JobId, JobState, Right, RunState};
use serde_json::json;
use store::StoreError;
use store::workflows::runs::inputs::Input;
use store::workflows::runs::{Run, RunNode};
use wire::{RawValue, RunCounts, RunNodeView, RunSignalView, RunView};

use crate::access::auth::Principal;
use crate::signals::view::range;
use crate::view::{raw, time};

/// Running nodes that a signal names.
const NAMED_NODES: usize = 3;
/// Nodes of the critical path that a signal names.
const CRITICAL_PATH_NODES: usize = 100;

pub(crate) fn inputs(inputs: Vec<(String, Input)>) -> Result<BTreeMap<String, Box<RawValue>>, StoreError> {
    let value = |input| match input {
        Input::Inline(result) => raw(result),
        Input::Reference { job, size } => raw(json!({"$result": {"job_id": job.uuid(), "size": size}}).to_string()),
    };
    inputs.into_iter().map(|(name, input)| Ok((name, value(input)?))).collect()
}

pub(crate) fn run(run: Run, nodes: Option<Vec<RunNode>>, principal: &Principal) -> RunView {
    let started_at = nodes.iter().flatten().filter_map(|node| node.started_at).min();
    let nodes = nodes.map(|nodes| nodes.into_iter().map(|of| node(of, principal)).collect());
    RunView {
        id: run.id,
        name: run.name,
        state: run.state.as_str().into(),
        on_failure: run.on_failure.as_str().into(),
        counts: RunCounts { live: run.live, succeeded: run.succeeded, failed: run.failed, canceled: run.canceled },
        tags: run.tags,
        principal: run.principal,
        canceled_by: run.canceled_by,
        parent: run.parent,
        retried_as: run.retried_as,
        created_at: time(run.created_at),
        started_at: started_at.map(time),
        finished_at: run.finished_at.map(time),
        nodes,
    }
}

fn name(node: &RunNode) -> String {
    node.name.clone().unwrap_or_else(|| node.job.to_string())
}

fn node(node: RunNode, principal: &Principal) -> RunNodeView {
    let error = node.error.as_ref().filter(|_| principal.has(Right::ReadLogs));
    RunNodeView {
        name: name(&node),
        job_id: node.job.uuid(),
        state: node.state.as_str().into(),
        when: node.condition.as_str().into(),
        queue: node.queue,
        kind: node.kind,
        attempt: node.attempt.into(),
        phase: node.phase,
        progress: node.progress,
        error: error.map(|error| wire::JobError {
            code: error.code.clone(),
            message: error.message.clone(),
            retryable: error.retryable,
        }),
        needs: node.needs,
        started_at: node.started_at.map(time),
        finished_at: node.finished_at.map(time),
    }
}

/// What is expected of the nodes that have not ended.
#[derive(Default)]
pub(crate) struct RunForecast {
    /// When the run ends. `None`: unknown.
    pub(crate) eta: Option<Eta>,
    /// Expected remaining seconds of nodes, where they are known.
    pub(crate) expected_s: HashMap<JobId, f64>,
}

/// The first signal of a run, from the states of its nodes.
pub(crate) fn signal(run: &Run, nodes: &[RunNode], forecast: &RunForecast) -> RunSignalView {
    let running: Vec<String> = nodes.iter().filter(|node| node.state.is_claimed()).map(name).collect();
    let queued = nodes.iter().filter(|node| matches!(node.state, JobState::Queued | JobState::Scheduled)).count();
    let ended = run.succeeded + run.failed + run.canceled;
    let total = ended + run.live;
    let failed: Vec<String> = nodes.iter().filter(|node| node.state == JobState::Failed).map(name).collect();
    let kind = match run.state {
        RunState::Running if !running.is_empty() => "started",
        RunState::Running if queued > 0 => "queued",
        RunState::Running => "blocked",
        ended => ended.as_str(),
    };
    let named = |names: &[String]| {
        let rest = names.len().saturating_sub(NAMED_NODES);
        let shown = names.iter().take(NAMED_NODES).cloned().collect::<Vec<_>>().join(", ");
        if rest > 0 { format!("{shown} and {rest} more") } else { shown }
    };
    let mut summary = match run.state {
        RunState::Running => format!("{ended} of {total} jobs ended"),
        ended => format!("The run {}: {} of {total} jobs succeeded", past(ended), run.succeeded),
    };
    if !running.is_empty() {
        summary.push_str(&format!("; running {}", named(&running)));
    }
    if !failed.is_empty() {
        summary.push_str(&format!("; failed {}", named(&failed)));
    }
    if let Some(eta) = forecast.eta {
        summary.push_str(&format!("; ends in {}", about_s(eta.p50_s)));
    }
    summary.push('.');
    RunSignalView {
        kind: kind.into(),
        phase: (!running.is_empty()).then(|| named(&running)),
        summary,
        progress: if total == 0 { 0.0 } else { ended as f64 / total as f64 },
        eta_seconds: forecast.eta.map(range),
        critical_path: critical_path(nodes, &forecast.expected_s),
        version: run.version,
    }
}

const fn past(state: RunState) -> &'static str {
    match state {
        RunState::Running => "is running",
        RunState::Succeeded => "succeeded",
        RunState::Failed => "failed",
        RunState::Canceled => "was canceled",
    }
}

/// The chain of nodes that have not ended with the longest expected duration, first node first. A node without a known
/// duration counts as one second.
fn critical_path(nodes: &[RunNode], expected_s: &HashMap<JobId, f64>) -> Vec<String> {
    let open: HashMap<String, &RunNode> =
        nodes.iter().filter(|node| !node.state.is_terminal()).map(|node| (name(node), node)).collect();
    // The graph has no cycle. Every node is visited once, after the nodes that it needs.
    let mut best: HashMap<&str, (f64, Option<&str>)> = HashMap::new();
    for start in open.keys() {
        let mut stack = vec![(start.as_str(), false)];
        while let Some((at, needs_are_done)) = stack.pop() {
            if best.contains_key(at) {
                continue;
            }
            let needs =
                || open[at].needs.iter().filter_map(|need| open.get_key_value(need)).map(|(need, _)| need.as_str());
            if !needs_are_done {
                stack.push((at, true));
                stack.extend(needs().filter(|need| !best.contains_key(need)).map(|need| (need, false)));
                continue;
            }
            let own_s = expected_s.get(&open[at].job).copied().unwrap_or(1.0);
            let longest = needs().map(|need| (best[need].0, need)).max_by(|one, other| later(*one, *other));
            best.insert(at, longest.map_or((own_s, None), |(length_s, need)| (length_s + own_s, Some(need))));
        }
    }
    let mut path = Vec::new();
    let ends = best.iter().map(|(name, (length_s, _))| (*length_s, *name));
    let mut at = ends.max_by(|one, other| later(*one, *other)).map(|(_, name)| name);
    while let Some(name) = at {
        path.push(name.to_owned());
        at = best[name].1;
    }
    path.reverse();
    path.truncate(CRITICAL_PATH_NODES);
    path
}

/// Orders chains by their length, and equal ones by the names of their last nodes.
fn later(one: (f64, &str), other: (f64, &str)) -> Ordering {
    one.0.total_cmp(&other.0).then(one.1.cmp(other.1))
}
