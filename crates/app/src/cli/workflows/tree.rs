//! Draws the graph of a run as a tree: each node once, below the last of the nodes that it needs.

use std::collections::HashMap;

use wire::RunNodeView;

/// Levels that the tree indents. Deeper nodes are drawn at this level.
const LEVELS: usize = 24;

/// A node with the text in front of its name.
pub(super) struct TreeLine<'a> {
    pub(super) indent: String,
    pub(super) node: &'a RunNodeView,
}

/// Returns the nodes in the order of the tree.
pub(super) fn lines(nodes: &[RunNodeView]) -> Vec<TreeLine<'_>> {
    let index: HashMap<&str, usize> =
        nodes.iter().enumerate().map(|(number, node)| (node.name.as_str(), number)).collect();
    let mut below: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    let mut roots = Vec::new();
    for (number, node) in nodes.iter().enumerate() {
        // Needs of another run are not drawn.
        match node.needs.iter().filter_map(|need| index.get(need.as_str()).copied()).max() {
            Some(parent) => below[parent].push(number),
            None => roots.push(number),
        }
    }
    let mut lines = Vec::with_capacity(nodes.len());
    let mut stack: Vec<(usize, Vec<bool>, bool)> = Vec::new();
    for (place, root) in roots.iter().enumerate().rev() {
        stack.push((*root, Vec::new(), place + 1 == roots.len()));
    }
    while let Some((number, above, is_last)) = stack.pop() {
        let mut indent: String = above.iter().skip(1).map(|last| if *last { "   " } else { "│  " }).collect();
        if !above.is_empty() {
            indent.push_str(if is_last { "└─ " } else { "├─ " });
        }
        lines.push(TreeLine { indent, node: &nodes[number] });
        let mut path = above;
        if path.len() < LEVELS {
            path.push(is_last);
        }
        for (place, child) in below[number].iter().enumerate().rev() {
            stack.push((*child, path.clone(), place + 1 == below[number].len()));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, needs: &[&str]) -> RunNodeView {
        RunNodeView {
            name: name.into(),
            job_id: uuid::Uuid::nil(),
            state: "queued".into(),
            needs: needs.iter().map(ToString::to_string).collect(),
            when: "success".into(),
            queue: "q".into(),
            kind: "k".into(),
            attempt: 0,
            phase: None,
            progress: None,
            error: None,
            started_at: None,
            finished_at: None,
        }
    }

    #[test]
    fn a_graph_is_drawn_with_each_node_once() {
        let nodes = [
            node("split", &[]),
            node("a", &["split"]),
            node("b", &["split"]),
            node("join", &["a", "b"]),
            node("other", &[]),
        ];
        let drawn: Vec<String> =
            lines(&nodes).iter().map(|line| format!("{}{}", line.indent, line.node.name)).collect();
        assert_eq!(drawn, ["split", "├─ a", "└─ b", "   └─ join", "other"]);
    }
}
