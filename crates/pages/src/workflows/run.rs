//! The page of one run: its signal, the graph of its nodes, and the nodes as a waterfall.

use std::collections::HashMap;

use askama::Template;
use jiff::Timestamp;
use wire::{RunNodeView, RunSignalView, RunView};

use super::graph::{self, Graph};
use super::runs;
use crate::frame::Frame;
use crate::html;
use crate::waterfall::{Span, TimeScale};

/// Rows of the waterfall. The listing of jobs has the others.
const ROWS: usize = 200;

#[derive(Debug, Template)]
#[template(path = "run.html")]
pub struct RunPage {
    pub frame: Frame,
    pub run: RunView,
    pub nodes: Vec<RunNodeView>,
    pub signal: RunSignalView,
}

/// A row of the waterfall.
struct WaterfallRow<'a> {
    node: &'a RunNodeView,
    spans: Vec<Span>,
}

impl RunPage {
    fn is_live(&self) -> bool {
        self.run.state == "running"
    }

    /// A run that succeeded has nothing to retry.
    fn can_retry(&self) -> bool {
        !self.is_live() && self.run.state != "succeeded" && self.run.retried_as.is_none()
    }

    fn title(&self) -> String {
        runs::title(&self.run)
    }

    fn graph(&self) -> Graph {
        graph::draw(&self.nodes, &self.run.id, &self.frame.root)
    }

    fn has_edges(&self) -> bool {
        self.nodes.iter().any(|node| !node.needs.is_empty())
    }

    /// From the start of the run to its end, or to now.
    fn scale(&self) -> TimeScale {
        TimeScale { from: self.run.created_at, until: self.run.finished_at.unwrap_or(self.frame.now) }
    }

    /// Nodes that have started, in the order of their start, then the others in the order of their creation.
    fn rows(&self) -> Vec<WaterfallRow<'_>> {
        let finished: HashMap<&str, Option<Timestamp>> =
            self.nodes.iter().map(|node| (node.name.as_str(), node.finished_at)).collect();
        let mut nodes: Vec<&RunNodeView> = self.nodes.iter().collect();
        nodes.sort_by_key(|node| (node.started_at.is_none(), node.started_at));
        nodes.truncate(ROWS);
        let row = |node| WaterfallRow { node, spans: self.spans(node, &finished) };
        nodes.into_iter().map(row).collect()
    }

    /// How long a node was ready before it started, and how long it ran.
    fn spans(&self, node: &RunNodeView, finished: &HashMap<&str, Option<Timestamp>>) -> Vec<Span> {
        let end = self.scale().until;
        let mut ready_at = Some(self.run.created_at);
        for need in node.needs.iter().filter_map(|need| finished.get(need.as_str())) {
            ready_at = ready_at.and_then(|ready_at| Some(need.as_ref()?.max(&ready_at).to_owned()));
        }
        let until = node.finished_at.unwrap_or(end);
        let mut spans = Vec::new();
        if let Some(ready_at) = ready_at {
            let started_at = node.started_at.unwrap_or(until);
            if started_at > ready_at {
                spans.push(Span::new(ready_at, started_at, "waits", "ready"));
            }
        }
        if let Some(started_at) = node.started_at {
            let class = match node.state.as_str() {
                "succeeded" => "good",
                "failed" => "bad",
                "canceled" => "off",
                "working" | "loading" => "busy",
                _ => "waits",
            };
            spans.push(Span::new(started_at, until, class, &node.state));
        }
        spans
    }

    fn hidden_rows(&self) -> usize {
        self.nodes.len().saturating_sub(ROWS)
    }

    fn took(&self) -> html::Markup {
        html::took(&Some(self.run.created_at), &self.run.finished_at)
    }
}
