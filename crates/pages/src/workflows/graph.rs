//! The graph of a run as SVG: one column per layer of dependencies, and boxes that link to the jobs.
//!
//! Nodes of one kind with the same needs and the same dependents share a box once there are many of them, so that a
//! fan-out of 10,000 is one box. What exceeds `BOXES` is grouped by layer and kind.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;

use wire::RunNodeView;

use crate::html::{self, Markup};

/// Nodes that look alike are drawn one by one up to this number.
const ALIKE: usize = 6;
/// Maximum number of boxes.
const BOXES: usize = 120;
/// Maximum number of lines between boxes.
const LINES: usize = 1_000;
/// Characters of a name in a box.
const NAME: usize = 20;
const WIDTH: usize = 176;
const HEIGHT: usize = 46;
const COLUMN: usize = 232;
const ROW: usize = 58;
/// Space for the outline of a focused box.
const MARGIN: usize = 4;

/// A graph, and the number of boxes that were left out.
pub(crate) struct Graph {
    pub(crate) svg: Markup,
    pub(crate) omitted: usize,
}

/// Nodes that share a box.
struct NodeBox<'a> {
    nodes: Vec<&'a RunNodeView>,
    layer: usize,
    /// Position in the layer.
    row: usize,
}

pub(crate) fn draw(nodes: &[RunNodeView], run: &str, root: &str) -> Graph {
    let indexes: HashMap<&str, usize> =
        nodes.iter().enumerate().map(|(index, node)| (node.name.as_str(), index)).collect();
    // A retried run also needs jobs of the run before it, which are not drawn.
    let needs: Vec<Vec<usize>> = nodes
        .iter()
        .map(|node| node.needs.iter().filter_map(|need| indexes.get(need.as_str()).copied()).collect())
        .collect();
    let layers = layers(&needs);
    let mut boxes = alike(nodes, &needs, &layers);
    if boxes.len() > BOXES {
        let mut by_kind: BTreeMap<(usize, &str, &str), Vec<usize>> = BTreeMap::new();
        for (index, node) in nodes.iter().enumerate() {
            by_kind.entry((layers[index], &node.queue, &node.kind)).or_default().push(index);
        }
        boxes = by_kind.into_values().collect();
    }
    let omitted = boxes.len().saturating_sub(BOXES);
    boxes.truncate(BOXES);
    let mut box_of = vec![None; nodes.len()];
    for (number, members) in boxes.iter().enumerate() {
        members.iter().for_each(|index| box_of[*index] = Some(number));
    }
    let mut lines: BTreeSet<(usize, usize)> = BTreeSet::new();
    for (index, needs) in needs.iter().enumerate() {
        for need in needs {
            if let (Some(from), Some(to)) = (box_of[*need], box_of[index])
                && lines.len() < LINES
            {
                lines.insert((from, to));
            }
        }
    }
    let cells = place(nodes, &boxes, &layers, &lines);
    Graph { svg: svg(&cells, &lines, run, root), omitted }
}

/// The length of the longest chain of needs before each node.
fn layers(needs: &[Vec<usize>]) -> Vec<usize> {
    let mut dependents = vec![Vec::new(); needs.len()];
    for (index, needs) in needs.iter().enumerate() {
        needs.iter().for_each(|need| dependents[*need].push(index));
    }
    let mut open: Vec<usize> = needs.iter().map(Vec::len).collect();
    let mut ready: Vec<usize> = (0..needs.len()).filter(|index| open[*index] == 0).collect();
    let mut layers = vec![0; needs.len()];
    // Every node becomes ready once, because a run has no cycle.
    while let Some(index) = ready.pop() {
        for dependent in &dependents[index] {
            layers[*dependent] = layers[*dependent].max(layers[index] + 1);
            open[*dependent] -= 1;
            if open[*dependent] == 0 {
                ready.push(*dependent);
            }
        }
    }
    layers
}

/// What nodes that look alike have in common: queue, kind, needs and dependents.
type NodeLook<'a> = (&'a str, &'a str, &'a [usize], &'a [usize]);

/// Groups nodes that look alike. A small group is one box per node.
fn alike(nodes: &[RunNodeView], needs: &[Vec<usize>], layers: &[usize]) -> Vec<Vec<usize>> {
    let mut dependents = vec![Vec::new(); nodes.len()];
    for (index, needs) in needs.iter().enumerate() {
        needs.iter().for_each(|need| dependents[*need].push(index));
    }
    let mut groups: HashMap<NodeLook, Vec<usize>> = HashMap::new();
    for (index, node) in nodes.iter().enumerate() {
        groups.entry((&node.queue, &node.kind, &needs[index], &dependents[index])).or_default().push(index);
    }
    let mut boxes: Vec<Vec<usize>> = Vec::new();
    for group in groups.into_values() {
        match group.len() > ALIKE {
            true => boxes.push(group),
            false => boxes.extend(group.into_iter().map(|index| vec![index])),
        }
    }
    boxes.sort_by_key(|members| (layers[members[0]], members[0]));
    boxes
}

/// Assigns a row to each box: below the boxes that it needs, as far as possible.
fn place<'a>(
    nodes: &'a [RunNodeView],
    boxes: &[Vec<usize>],
    layers: &[usize],
    lines: &BTreeSet<(usize, usize)>,
) -> Vec<NodeBox<'a>> {
    let mut cells: Vec<NodeBox<'a>> = boxes
        .iter()
        .map(|members| NodeBox {
            nodes: members.iter().map(|index| &nodes[*index]).collect(),
            layer: layers[members[0]],
            row: 0,
        })
        .collect();
    let mut by_layer: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    cells.iter().enumerate().for_each(|(number, cell)| by_layer.entry(cell.layer).or_default().push(number));
    let mut needed: HashMap<usize, Vec<usize>> = HashMap::new();
    lines.iter().for_each(|(from, to)| needed.entry(*to).or_default().push(*from));
    for column in by_layer.values_mut() {
        // The mean row of the boxes before it, in hundredths, keeps lines short.
        let mean = |number: &usize| {
            let before = needed.get(number).map(Vec::as_slice).unwrap_or_default();
            100 * before.iter().map(|from| cells[*from].row).sum::<usize>() / before.len().max(1)
        };
        let mut ordered: Vec<(usize, usize)> = column.iter().map(|number| (mean(number), *number)).collect();
        ordered.sort_unstable();
        for (row, (_, number)) in ordered.into_iter().enumerate() {
            cells[number].row = row;
        }
    }
    cells
}

fn svg(cells: &[NodeBox<'_>], lines: &BTreeSet<(usize, usize)>, run: &str, root: &str) -> Markup {
    let mut heights: BTreeMap<usize, usize> = BTreeMap::new();
    cells.iter().for_each(|cell| *heights.entry(cell.layer).or_default() += 1);
    let rows = heights.values().copied().max().unwrap_or(0);
    let columns = heights.keys().next_back().map_or(0, |layer| layer + 1);
    let width = 2 * MARGIN + columns.saturating_sub(1) * COLUMN + WIDTH;
    let height = 2 * MARGIN + rows.saturating_sub(1) * ROW + HEIGHT;
    // Short columns are centered.
    let x = |cell: &NodeBox<'_>| MARGIN + cell.layer * COLUMN;
    let y = |cell: &NodeBox<'_>| MARGIN + cell.row * ROW + (rows - heights[&cell.layer]) * ROW / 2;
    let mut svg =
        format!("<svg class=\"graph\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\">");
    for (from, to) in lines {
        let (from, to) = (&cells[*from], &cells[*to]);
        let (x1, y1, x2, y2) = (x(from) + WIDTH, y(from) + HEIGHT / 2, x(to), y(to) + HEIGHT / 2);
        let middle = (x1 + x2) / 2;
        let class = if from.nodes.iter().all(|node| node.state == "succeeded") { "line met" } else { "line" };
        let _ = write!(svg, "<path class=\"{class}\" d=\"M{x1} {y1}C{middle} {y1} {middle} {y2} {x2} {y2}\"/>");
    }
    for cell in cells {
        svg.push_str(&draw_box(cell, x(cell), y(cell), run, root));
    }
    svg.push_str("</svg>");
    Markup::new(svg)
}

fn draw_box(cell: &NodeBox<'_>, x: usize, y: usize, run: &str, root: &str) -> String {
    let first = cell.nodes[0];
    let number = cell.nodes.len();
    let (state, name, link, second) = match cell.nodes.as_slice() {
        [node] => {
            let second = match (node.phase.as_deref(), node.progress) {
                (Some(phase), Some(progress)) => format!("{phase} · {:.0} %", progress * 100.0),
                (None, Some(progress)) => format!("working · {:.0} %", progress * 100.0),
                (Some(phase), None) => phase.to_owned(),
                (None, None) => node.state.clone(),
            };
            let second = if node.state == "working" { second } else { node.state.clone() };
            (node.state.as_str(), node.name.clone(), format!("jobs/{}", node.job_id), second)
        }
        nodes => {
            let count = |state: &str| nodes.iter().filter(|node| node.state == state).count() as i64;
            let states = ["failed", "working", "loading", "queued", "scheduled", "waiting", "canceled", "succeeded"];
            let present: Vec<(&str, i64)> =
                states.map(|state| (state, count(state))).into_iter().filter(|(_, jobs)| *jobs > 0).collect();
            let second = present.iter().take(2).map(|(state, jobs)| format!("{} {state}", html::count(jobs)));
            let link = format!("jobs?run={}&kind={}", html::segment(run), html::segment(&first.kind));
            let state = present.first().map_or("waiting", |(state, _)| *state);
            (
                state,
                format!("{} × {}", html::count(&(number as i64)), first.kind),
                link,
                second.collect::<Vec<_>>().join(", "),
            )
        }
    };
    let tooltip = format!("{name}: {second}; {} in {}", first.kind, first.queue);
    let mut drawn = format!(
        "<a class=\"node node-{state}\" href=\"{root}{}\"><title>{}</title>",
        html::escape(&link),
        html::escape(&tooltip)
    );
    if number > 1 {
        let _ = write!(
            drawn,
            "<rect class=\"pile\" x=\"{}\" y=\"{}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"8\"/>",
            x + 4,
            y + 4
        );
    }
    let _ = write!(
        drawn,
        "<rect class=\"box\" x=\"{x}\" y=\"{y}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"8\"/>\
         <rect class=\"edge\" x=\"{x}\" y=\"{}\" width=\"4\" height=\"{}\" rx=\"2\"/>\
         <text class=\"title\" x=\"{}\" y=\"{}\">{}</text><text class=\"sub\" x=\"{}\" y=\"{}\">{}</text>",
        y + 8,
        HEIGHT - 16,
        x + 14,
        y + 20,
        html::escape(&shorten(&name, NAME)),
        x + 14,
        y + 36,
        html::escape(&shorten(&second, NAME + 4))
    );
    if let ([node], "working") = (cell.nodes.as_slice(), state)
        && let Some(progress) = node.progress
    {
        let done = (progress.clamp(0.0, 1.0) * (WIDTH - 28) as f64).round();
        let _ = write!(
            drawn,
            "<rect class=\"done\" x=\"{}\" y=\"{}\" width=\"{done}\" height=\"3\" rx=\"1.5\"/>",
            x + 14,
            y + HEIGHT - 6
        );
    }
    drawn.push_str("</a>");
    drawn
}

fn shorten(text: &str, characters: usize) -> String {
    match text.chars().count() > characters {
        true => text.chars().take(characters - 1).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, needs: &[&str]) -> RunNodeView {
        serde_json::from_value(serde_json::json!({
            "name": name, "job_id": uuid::Uuid::nil(), "state": "queued", "needs": needs, "when": "success",
            "queue": "q", "kind": name.trim_end_matches(char::is_numeric), "attempt": 0, "phase": null,
            "progress": null, "error": null, "started_at": null, "finished_at": null,
        }))
        .expect("a node")
    }

    fn fan_out(width: usize) -> Vec<RunNodeView> {
        let parts: Vec<String> = (0..width).map(|number| format!("part{number}")).collect();
        let mut nodes = vec![node("split", &[])];
        nodes.extend(parts.iter().map(|part| node(part, &["split"])));
        nodes.push(node("join", &parts.iter().map(String::as_str).collect::<Vec<_>>()));
        nodes
    }

    #[test]
    fn a_small_fan_out_is_drawn_node_by_node_in_three_columns() {
        let svg = draw(&fan_out(3), "r", "../").svg.to_string();
        assert_eq!((svg.matches("class=\"box\"").count(), svg.matches("class=\"line\"").count()), (5, 6), "{svg}");
        let columns: BTreeSet<&str> =
            svg.split("class=\"box\" x=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert_eq!(columns.len(), 3, "{svg}");
    }

    #[test]
    fn a_fan_out_of_ten_thousand_is_one_box_that_links_to_its_jobs() {
        let svg = draw(&fan_out(9_998), "the run", "../").svg.to_string();
        assert_eq!((svg.matches("class=\"box\"").count(), svg.matches("class=\"line\"").count()), (3, 2));
        assert!(svg.contains("9,998 × part") && svg.contains("../jobs?run=the%20run&#38;kind=part"), "{svg}");
        assert!(svg.len() < 4_000, "{} bytes", svg.len());
    }

    #[test]
    fn nodes_that_look_alike_share_a_box_once_they_are_more_than_six() {
        let boxes = |width| draw(&fan_out(width), "r", "../").svg.to_string().matches("class=\"box\"").count();
        assert_eq!([boxes(6), boxes(7)], [8, 3]);
    }

    #[test]
    fn many_chains_are_grouped_by_layer_and_kind() {
        let mut nodes = Vec::new();
        for number in 0..500 {
            nodes.push(node(&format!("fetch{number}"), &[]));
            nodes.push(node(&format!("scan{number}"), &[&format!("fetch{number}")]));
        }
        let graph = draw(&nodes, "r", "../");
        assert_eq!((graph.svg.to_string().matches("class=\"box\"").count(), graph.omitted), (2, 0));
    }

    #[test]
    fn names_are_escaped_and_unknown_needs_are_ignored() {
        let svg = draw(&[node("<b>\"x", &["elsewhere"])], "r", "../").svg.to_string();
        assert!(!svg.contains("<b>") && svg.contains("&#60;b&#62;"), "{svg}");
    }
}
