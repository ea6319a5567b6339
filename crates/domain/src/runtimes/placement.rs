//! Placement: chooses the node of a runtime. The node must be alive, have a reachable Docker engine, all required
//! labels and a free slot.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

use crate::Label;
use crate::limits::PLACEMENT_LABELS;
use crate::runtimes::{OperationCode, SpecError};

/// The labels that a node must have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    pub labels: BTreeMap<String, String>,
}

impl Placement {
    pub fn check(&self) -> Result<(), SpecError> {
        let refuse = |field: String, reason: String| Err(SpecError { field, reason });
        if self.labels.len() > PLACEMENT_LABELS {
            let reason = format!("may have at most {PLACEMENT_LABELS}; it has {}", self.labels.len());
            return refuse("placement.labels".into(), reason);
        }
        for (name, value) in &self.labels {
            if let Err(error) = check_label(name, value) {
                return refuse(format!("placement.labels.{name}"), error);
            }
        }
        Ok(())
    }

    pub fn fits(&self, labels: &BTreeMap<String, String>) -> bool {
        self.labels.iter().all(|(name, value)| labels.get(name) == Some(value))
    }
}

/// Validates a node label. The name must not contain `=`, so that the label can be written as `NAME=VALUE`.
pub fn check_label(name: &str, value: &str) -> Result<(), String> {
    Label::new(name).map_err(|error| format!("has a name that {error}"))?;
    Label::new(value).map_err(|error| error.to_string())?;
    if name.contains(['=', ',']) || value.contains(',') {
        return Err("must not contain commas, and its name must not contain =".into());
    }
    Ok(())
}

/// A node with a current heartbeat.
#[derive(Clone, Debug)]
pub struct Candidate<'n> {
    pub name: &'n str,
    pub labels: &'n BTreeMap<String, String>,
    /// Why its Docker engine is unreachable.
    pub fault: Option<&'n str>,
    /// `None`: unlimited.
    pub slots: Option<i64>,
    /// Runtimes that run there or are about to start.
    pub taken: i64,
}

impl Candidate<'_> {
    fn free(&self) -> i64 {
        self.slots.unwrap_or(i64::MAX).saturating_sub(self.taken)
    }
}

/// Why no node can run a runtime at present. All reasons can resolve by themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlacementError {
    /// No node has a Docker engine.
    NoNode,
    /// The required labels that no node has. If each label exists but no node has all of them, `together` is set.
    Labels { wanted: Vec<String>, together: bool },
    /// The Docker engines of all matching nodes are unreachable.
    Away { node: String, fault: String },
    /// All matching nodes are full.
    Full { nodes: Vec<String> },
}

impl PlacementError {
    pub const fn code(&self) -> OperationCode {
        match self {
            Self::Away { .. } => OperationCode::DockerUnavailable,
            _ => OperationCode::ServiceUnavailable,
        }
    }
}

impl fmt::Display for PlacementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoNode => f.write_str("no node drives a Docker engine"),
            Self::Labels { wanted, together: false } => write!(f, "no node has {}", wanted.join(" or ")),
            Self::Labels { wanted, together: true } => write!(f, "no one node has {}", wanted.join(" and ")),
            Self::Away { node, fault } => write!(f, "Docker on node {node} is unreachable: {fault}"),
            Self::Full { nodes } => write!(f, "all slots are taken: {}", nodes.join(", ")),
        }
    }
}

/// Returns the matching node with the most free slots; among equals the first by name.
pub fn choose<'n>(nodes: &[Candidate<'n>], wanted: &Placement) -> Result<&'n str, PlacementError> {
    if nodes.is_empty() {
        return Err(PlacementError::NoNode);
    }
    let fitting: Vec<&Candidate> = nodes.iter().filter(|node| wanted.fits(node.labels)).collect();
    if fitting.is_empty() {
        return Err(missing_labels(nodes, wanted));
    }
    let reachable: Vec<&Candidate> = fitting.iter().copied().filter(|node| node.fault.is_none()).collect();
    if reachable.is_empty() {
        let away = fitting[0];
        return Err(PlacementError::Away { node: away.name.into(), fault: away.fault.unwrap_or_default().into() });
    }
    let with_slots = reachable.iter().filter(|node| node.free() > 0);
    with_slots.min_by_key(|node| (Reverse(node.free()), node.name)).map(|node| node.name).ok_or_else(|| {
        let usage = |node: &&Candidate| format!("{} of {} on {}", node.taken, node.slots.unwrap_or(0), node.name);
        PlacementError::Full { nodes: reachable.iter().map(usage).collect() }
    })
}

fn missing_labels(nodes: &[Candidate<'_>], wanted: &Placement) -> PlacementError {
    let written = |(name, value): (&String, &String)| format!("{name}={value}");
    let is_missing =
        |(name, value): &(&String, &String)| !nodes.iter().any(|node| node.labels.get(*name) == Some(value));
    let missing: Vec<String> = wanted.labels.iter().filter(is_missing).map(written).collect();
    if missing.is_empty() {
        return PlacementError::Labels { wanted: wanted.labels.iter().map(written).collect(), together: true };
    }
    PlacementError::Labels { wanted: missing, together: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// Requirement R1.
    #[test]
    fn a_runtime_is_placed_on_the_matching_node_with_the_most_free_slots() {
        let (plain, gpu) = (labels(&[]), labels(&[("gpu", "a100")]));
        let node = |name, labels, slots, taken| Candidate { name, labels, fault: None, slots, taken };
        let any = Placement::default();
        let wants = |pairs| Placement { labels: labels(pairs) };
        let nodes = [node("a", &plain, Some(4), 3), node("b", &plain, Some(4), 2), node("c", &gpu, Some(2), 0)];
        assert_eq!(choose(&nodes, &any), Ok("b"), "as many as c has free, and first by name");
        assert_eq!(choose(&nodes, &wants(&[("gpu", "a100")])), Ok("c"));
        assert_eq!(choose(&[node("a", &plain, Some(9), 0), node("b", &plain, None, 50)], &any), Ok("b"), "no bound");
        assert_eq!(choose(&[node("a", &plain, None, 2), node("b", &plain, None, 1)], &any), Ok("b"));
    }

    /// Requirement R1.
    #[test]
    fn a_placement_without_a_node_explains_the_reason() {
        let (gpu, zone) = (labels(&[("gpu", "a100")]), labels(&[("zone", "b")]));
        let node = |name, labels, taken| Candidate { name, labels, fault: None, slots: Some(2), taken };
        let nodes = [node("a", &gpu, 2), node("b", &zone, 0)];
        let why = |nodes: &[Candidate<'_>], pairs: &[(&str, &str)]| {
            let error = choose(nodes, &Placement { labels: labels(pairs) }).expect_err("no node fits");
            (error.code(), error.to_string())
        };
        let unavailable = OperationCode::ServiceUnavailable;
        assert_eq!(why(&[], &[]), (unavailable, "no node drives a Docker engine".into()));
        assert_eq!(why(&nodes, &[("gpu", "h100"), ("zone", "b")]), (unavailable, "no node has gpu=h100".into()));
        let both = [("gpu", "a100"), ("zone", "b")];
        assert_eq!(why(&nodes, &both), (unavailable, "no one node has gpu=a100 and zone=b".into()));
        assert_eq!(why(&nodes, &both[..1]), (unavailable, "all slots are taken: 2 of 2 on a".into()));
        let away = [Candidate { fault: Some("refused"), ..node("a", &gpu, 0) }];
        let reason = "Docker on node a is unreachable: refused";
        assert_eq!(why(&away, &both[..1]), (OperationCode::DockerUnavailable, reason.into()));
    }
}
