//! Which node a runtime goes to: one that is there, whose engine answers, that has every label it asks for, and a free slot.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

use crate::Label;
use crate::limits::PLACEMENT_LABELS;
use crate::runtime::{OperationCode, SpecError};

/// What a node must have.
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

/// A label of a node: both sides are words, and the name has no `=`, so that it can be written `NAME=VALUE`.
pub fn check_label(name: &str, value: &str) -> Result<(), String> {
    Label::new(name).map_err(|error| format!("has a name that {error}"))?;
    Label::new(value).map_err(|error| error.to_string())?;
    if name.contains(['=', ',']) || value.contains(',') {
        return Err("must not hold commas, nor = in its name".into());
    }
    Ok(())
}

/// A node that says that it lives.
#[derive(Clone, Debug)]
pub struct Candidate<'n> {
    pub name: &'n str,
    pub labels: &'n BTreeMap<String, String>,
    /// Why its engine cannot be reached.
    pub fault: Option<&'n str>,
    /// No bound, when `None`.
    pub slots: Option<i64>,
    /// Runtimes that run there or are about to.
    pub taken: i64,
}

impl Candidate<'_> {
    fn free(&self) -> i64 {
        self.slots.unwrap_or(i64::MAX).saturating_sub(self.taken)
    }
}

/// Why there is no node for a runtime now. One may come by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nowhere {
    /// Nobody drives an engine.
    NoNode,
    /// Labels that no node has; all that were asked for, when each has one but no node has them all.
    Labels { wanted: Vec<String>, together: bool },
    /// The engines of those that would do cannot be reached.
    Away { node: String, fault: String },
    /// Those that would do are full.
    Full { nodes: Vec<String> },
}

impl Nowhere {
    pub const fn code(&self) -> OperationCode {
        match self {
            Self::Away { .. } => OperationCode::DockerUnavailable,
            _ => OperationCode::ServiceUnavailable,
        }
    }
}

impl fmt::Display for Nowhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoNode => f.write_str("no node drives a Docker engine"),
            Self::Labels { wanted, together: false } => write!(f, "no node has {}", wanted.join(" or ")),
            Self::Labels { wanted, together: true } => write!(f, "no one node has {}", wanted.join(" and ")),
            Self::Away { node, fault } => write!(f, "the engine of the node {node} does not answer: {fault}"),
            Self::Full { nodes } => write!(f, "all slots are taken: {}", nodes.join(", ")),
        }
    }
}

/// The node with the most free slots among those that would do, the first by name among equals.
pub fn choose<'n>(nodes: &[Candidate<'n>], wanted: &Placement) -> Result<&'n str, Nowhere> {
    if nodes.is_empty() {
        return Err(Nowhere::NoNode);
    }
    let fitting: Vec<&Candidate> = nodes.iter().filter(|node| wanted.fits(node.labels)).collect();
    if fitting.is_empty() {
        return Err(unheard_of(nodes, wanted));
    }
    let well: Vec<&Candidate> = fitting.iter().copied().filter(|node| node.fault.is_none()).collect();
    if well.is_empty() {
        let away = fitting[0];
        return Err(Nowhere::Away { node: away.name.into(), fault: away.fault.unwrap_or_default().into() });
    }
    let with_room = well.iter().filter(|node| node.free() > 0);
    with_room.min_by_key(|node| (Reverse(node.free()), node.name)).map(|node| node.name).ok_or_else(|| {
        let told = |node: &&Candidate| format!("{} of {} on {}", node.taken, node.slots.unwrap_or(0), node.name);
        Nowhere::Full { nodes: well.iter().map(told).collect() }
    })
}

fn unheard_of(nodes: &[Candidate<'_>], wanted: &Placement) -> Nowhere {
    let written = |(name, value): (&String, &String)| format!("{name}={value}");
    let nobody_has =
        |(name, value): &(&String, &String)| !nodes.iter().any(|node| node.labels.get(*name) == Some(value));
    let missing: Vec<String> = wanted.labels.iter().filter(nobody_has).map(written).collect();
    if missing.is_empty() {
        return Nowhere::Labels { wanted: wanted.labels.iter().map(written).collect(), together: true };
    }
    Nowhere::Labels { wanted: missing, together: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn r1_a_runtime_goes_to_the_node_with_its_labels_and_the_most_room() {
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

    #[test]
    fn r1_who_finds_no_node_is_told_why() {
        let (gpu, zone) = (labels(&[("gpu", "a100")]), labels(&[("zone", "b")]));
        let node = |name, labels, taken| Candidate { name, labels, fault: None, slots: Some(2), taken };
        let nodes = [node("a", &gpu, 2), node("b", &zone, 0)];
        let why = |nodes: &[Candidate<'_>], pairs: &[(&str, &str)]| {
            let nowhere = choose(nodes, &Placement { labels: labels(pairs) }).expect_err("nobody would do");
            (nowhere.code(), nowhere.to_string())
        };
        let unavailable = OperationCode::ServiceUnavailable;
        assert_eq!(why(&[], &[]), (unavailable, "no node drives a Docker engine".into()));
        assert_eq!(why(&nodes, &[("gpu", "h100"), ("zone", "b")]), (unavailable, "no node has gpu=h100".into()));
        let both = [("gpu", "a100"), ("zone", "b")];
        assert_eq!(why(&nodes, &both), (unavailable, "no one node has gpu=a100 and zone=b".into()));
        assert_eq!(why(&nodes, &both[..1]), (unavailable, "all slots are taken: 2 of 2 on a".into()));
        let away = [Candidate { fault: Some("refused"), ..node("a", &gpu, 0) }];
        let told = "the engine of the node a does not answer: refused";
        assert_eq!(why(&away, &both[..1]), (OperationCode::DockerUnavailable, told.into()));
    }
}
