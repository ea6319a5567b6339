//! Checks the graph of a run before any of its jobs exists.

use std::collections::{HashMap, HashSet};

use crate::limits::{RUN_NEEDS, RUN_NODES};

/// A node and the names of the nodes that it needs.
#[derive(Clone, Debug)]
pub struct GraphNode<'a> {
    pub name: &'a str,
    pub needs: Vec<&'a str>,
}

/// Why a graph is refused. `node` is the index of the node in the request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    #[error("the name {name} is used twice")]
    DuplicateName { node: usize, name: String },
    #[error("needs {need}, which is not a node of the run")]
    UnknownNeed { node: usize, need: String },
    #[error("needs {need} twice")]
    DuplicateNeed { node: usize, need: String },
    #[error("is part of a cycle: {cycle}")]
    Cycle { node: usize, cycle: String },
    #[error("a run may have at most {RUN_NODES} nodes")]
    TooManyNodes,
    #[error("the nodes of one request may have at most {RUN_NEEDS} needs")]
    TooManyNeeds,
}

/// Checks that names are unique, that every need exists, and that no node needs itself through others. `existing` are the
/// nodes that the run has already.
pub fn check(nodes: &[GraphNode<'_>], existing: &HashSet<&str>) -> Result<(), GraphError> {
    if nodes.len() + existing.len() > RUN_NODES {
        return Err(GraphError::TooManyNodes);
    }
    if nodes.iter().map(|node| node.needs.len()).sum::<usize>() > RUN_NEEDS {
        return Err(GraphError::TooManyNeeds);
    }
    let mut index: HashMap<&str, usize> = HashMap::with_capacity(nodes.len());
    for (number, node) in nodes.iter().enumerate() {
        if existing.contains(node.name) || index.insert(node.name, number).is_some() {
            return Err(GraphError::DuplicateName { node: number, name: node.name.to_owned() });
        }
    }
    // Existing nodes never need new ones, so only the new nodes can form a cycle.
    let mut needed_by: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    let mut unmet: Vec<usize> = vec![0; nodes.len()];
    for (number, node) in nodes.iter().enumerate() {
        let mut seen = HashSet::with_capacity(node.needs.len());
        for need in &node.needs {
            if !seen.insert(*need) {
                return Err(GraphError::DuplicateNeed { node: number, need: (*need).to_owned() });
            }
            match index.get(need) {
                Some(of) => {
                    needed_by[*of].push(number);
                    unmet[number] += 1;
                }
                None if existing.contains(need) => {}
                None => return Err(GraphError::UnknownNeed { node: number, need: (*need).to_owned() }),
            }
        }
    }
    let mut ready: Vec<usize> = (0..nodes.len()).filter(|node| unmet[*node] == 0).collect();
    let mut ordered = 0;
    while let Some(node) = ready.pop() {
        ordered += 1;
        for next in &needed_by[node] {
            unmet[*next] -= 1;
            if unmet[*next] == 0 {
                ready.push(*next);
            }
        }
    }
    if ordered == nodes.len() {
        return Ok(());
    }
    Err(cycle(nodes, &index, &unmet))
}

/// Follows needs that were never met until a node repeats.
fn cycle(nodes: &[GraphNode<'_>], index: &HashMap<&str, usize>, unmet: &[usize]) -> GraphError {
    let mut node = unmet.iter().position(|unmet| *unmet > 0).expect("a node of the cycle is left");
    let mut path: Vec<usize> = Vec::new();
    let mut position: HashMap<usize, usize> = HashMap::new();
    while !position.contains_key(&node) {
        position.insert(node, path.len());
        path.push(node);
        let needs = nodes[node].needs.iter().filter_map(|need| index.get(need).copied());
        node = needs.into_iter().find(|need| unmet[*need] > 0).expect("a node of a cycle needs another");
    }
    let names: Vec<&str> = path[position[&node]..].iter().chain([&node]).map(|node| nodes[*node].name).collect();
    // A long cycle is named by its first nodes.
    let cycle = match names.as_slice() {
        [first @ .., _, last] if names.len() > 10 => format!("{}, …, {last}", first[..8].join(" needs ")),
        all => all.join(" needs "),
    };
    GraphError::Cycle { node, cycle }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_graph(edges: &[(&str, &[&str])]) -> Result<(), String> {
        let nodes: Vec<GraphNode<'_>> =
            edges.iter().map(|(name, needs)| GraphNode { name, needs: needs.to_vec() }).collect();
        check(&nodes, &HashSet::from(["old"])).map_err(|error| error.to_string())
    }

    #[test]
    fn a_graph_without_cycles_is_accepted() {
        assert_eq!(
            check_graph(&[("join", &["a", "b", "old"]), ("a", &["split"]), ("b", &["split"]), ("split", &[])]),
            Ok(())
        );
    }

    #[test]
    fn cycles_unknown_and_duplicate_names_are_refused_by_name() {
        let refused = |edges: &[(&str, &[&str])]| check_graph(edges).expect_err("is refused");
        assert_eq!(refused(&[("a", &["a"])]), "is part of a cycle: a needs a");
        assert_eq!(refused(&[("x", &["a"]), ("a", &["b"]), ("b", &["a"])]), "is part of a cycle: a needs b needs a");
        assert_eq!(refused(&[("a", &["c"])]), "needs c, which is not a node of the run");
        assert_eq!(refused(&[("a", &[]), ("a", &[])]), "the name a is used twice");
        assert_eq!(refused(&[("old", &[])]), "the name old is used twice");
        assert_eq!(refused(&[("a", &["old", "old"])]), "needs old twice");
    }

    #[test]
    fn ten_thousand_nodes_are_checked_and_one_more_is_refused() {
        let names: Vec<String> = (0..RUN_NODES).map(|number| number.to_string()).collect();
        let chain = |count: usize| {
            let needs = |number: usize| if number == 0 { Vec::new() } else { vec![names[number - 1].as_str()] };
            (0..count).map(|number| GraphNode { name: &names[number], needs: needs(number) }).collect::<Vec<_>>()
        };
        assert_eq!(check(&chain(RUN_NODES), &HashSet::new()), Ok(()));
        assert_eq!(check(&chain(RUN_NODES), &HashSet::from(["old"])), Err(GraphError::TooManyNodes));
    }
}
