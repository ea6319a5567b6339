//! The runtimes page and the page of one runtime: declaration, observed state, health, operations and log.

use askama::Template;
use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;
use wire::{NodeView, OperationView, Page, RuntimeHealth, RuntimeView};

use crate::chart::{self, HealthInterval};
use crate::frame::Frame;
use crate::html::{self, Markup};

/// The period that the health strip covers.
const STRIP: SignedDuration = SignedDuration::from_hours(24);
/// Log lines that the page requests at first.
const TAIL: u32 = 200;

#[derive(Debug, Template)]
#[template(path = "runtimes.html")]
pub struct Runtimes {
    pub frame: Frame,
    pub runtimes: Vec<RuntimeWithHistory>,
    pub nodes: Vec<NodeView>,
    pub next_cursor: Option<String>,
}

fn labels(node: &NodeView) -> String {
    let pairs: Vec<String> = node.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    pairs.join(" ")
}

fn slots(node: &NodeView) -> String {
    match node.slots {
        Some(slots) => format!("{} of {slots}", node.slots_taken),
        None => node.slots_taken.to_string(),
    }
}

/// The state of a node.
fn node_state(node: &NodeView) -> &'static str {
    match (node.is_lost, &node.fault) {
        (true, _) => "lost",
        (false, Some(_)) => "engine unreachable",
        (false, None) => "up",
    }
}

#[derive(Debug, Template)]
#[template(path = "runtime.html")]
pub struct RuntimePage {
    pub frame: Frame,
    pub runtime: RuntimeWithHistory,
    pub operations: Page<OperationView>,
}

/// A runtime with its health history and last operation.
#[derive(Clone, Debug)]
pub struct RuntimeWithHistory {
    pub view: RuntimeView,
    /// Health changes, newest first.
    pub past: Vec<RuntimeHealth>,
    /// The last operation.
    pub last: Option<OperationView>,
}

impl RuntimeWithHistory {
    fn path(&self) -> String {
        html::segment(&self.view.name)
    }

    /// The observed state. A runtime without an operation has not been started yet.
    fn observed(&self) -> &str {
        let is_new = self.view.status == "removed" && self.view.last_op_at.is_none() && self.last.is_none();
        if is_new { "not_started" } else { &self.view.status }
    }

    /// True if the running image differs from the declared one. A restart applies the declaration.
    fn is_outdated(&self) -> bool {
        self.is_running() && self.view.current_image.as_ref().is_some_and(|current| *current != self.view.image)
    }

    fn is_running(&self) -> bool {
        self.view.status == "running"
    }

    fn has_container(&self) -> bool {
        self.view.container_id.is_some()
    }

    /// The error of the last operation, if it failed.
    fn failure(&self) -> Option<String> {
        let last = self.last.as_ref().filter(|last| last.outcome.as_deref() == Some("failure"))?;
        let why = last.error_message.as_ref().or(last.error_code.as_ref());
        Some(why.map_or_else(|| format!("{} failed", last.kind), |why| format!("{} failed: {why}", last.kind)))
    }

    /// The desired state; `manual` if none is declared.
    fn desired(&self) -> &str {
        self.view.desired.as_deref().unwrap_or("manual")
    }

    fn health(&self) -> Markup {
        self.view.health.as_ref().map_or_else(html::none, |health| {
            let details = html::escape(&health.details);
            Markup::new(format!("<span title=\"{details}\">{}</span>", html::state(&health.status)))
        })
    }

    /// The health strip of the last 24 hours. Time before the first observation is left blank.
    fn strip(&self, now: &Timestamp) -> Markup {
        let from = now.checked_sub(STRIP).unwrap_or(*now);
        let mut until = *now;
        let mut intervals = Vec::new();
        for observation in &self.past {
            let start = observation.observed_at.max(from);
            intervals.push(HealthInterval { from: start, until, status: observation.status.clone() });
            until = start;
            if observation.observed_at <= from {
                break;
            }
        }
        intervals.reverse();
        chart::strip(&intervals, from, *now, &format!("Health of {} in the last 24 hours", self.view.name))
    }
}

impl RuntimePage {
    fn declared(&self) -> Vec<(&'static str, Markup)> {
        let view = &self.runtime.view;
        let code = |text: &str| Markup::new(format!("<code>{}</code>", html::escape(text)));
        let text = |text: String| Markup::new(html::escape(&text));
        let mut facts = vec![("Image", code(&view.image)), ("Desired", text(self.runtime.desired().to_owned()))];
        if !view.command.is_empty() {
            facts.push(("Command", code(&view.command.join(" "))));
        }
        if !view.env.is_empty() {
            let names: Vec<&str> = view.env.keys().map(String::as_str).collect();
            facts.push(("Environment (values are secret)", code(&names.join(" "))));
        }
        if !view.ports.is_empty() {
            let port = |port: &wire::PortSettings| match port.host {
                Some(host) => format!("{host} → {}", port.container),
                None => format!("any → {}", port.container),
            };
            let ports: Vec<String> = view.ports.iter().map(port).collect();
            facts.push(("Ports", text(ports.join(", "))));
        }
        if !view.volumes.is_empty() {
            let paths: Vec<&str> = view.volumes.iter().map(|volume| volume.path.as_str()).collect();
            facts.push(("Volumes", code(&paths.join(" "))));
        }
        facts.push(("Network", text(view.network.clone())));
        facts.extend(view.memory_mb.map(|mb| ("Memory", text(format!("{mb} MB")))));
        facts.extend(view.cpus.map(|cpus| ("CPUs", text(cpus.to_string()))));
        let probe = |probe: &wire::ProbeSettings| ("Probe", code(&format!("{} on port {}", probe.path, probe.port)));
        facts.extend(view.probe.as_ref().map(probe));
        facts.extend(view.ttl_s.map(|seconds| ("Stop after", text(html::seconds(seconds as f64)))));
        facts.push(("Declared", html::time(&view.created_at)));
        facts
    }

    fn observed(&self) -> Vec<(&'static str, Markup)> {
        let view = &self.runtime.view;
        let code = |text: &String| Markup::new(format!("<code>{}</code>", html::escape(text)));
        let mut facts = vec![("Status", html::state(self.runtime.observed()))];
        facts.extend(view.notice.as_ref().map(|notice| ("Notice", html::prose(notice))));
        facts.extend(view.in_flight.as_ref().map(|kind| ("In progress", html::state(kind))));
        facts.push(("Health", self.runtime.health()));
        facts.extend(view.health.as_ref().map(|health| {
            let observation = format!("{} ({})", health.details, health.source);
            ("Observed", Markup::new(format!("{} {}", html::escape(&observation), html::ago(&health.observed_at))))
        }));
        facts.extend(view.current_image.as_ref().map(|image| ("Image", code(image))));
        facts.extend(view.endpoint.as_ref().map(|endpoint| ("Endpoint", code(endpoint))));
        facts.extend(view.container_id.as_ref().map(|id| ("Container", code(&id.chars().take(12).collect()))));
        facts.extend(view.node.as_ref().map(|node| ("Node", Markup::new(html::escape(node)))));
        facts.extend(view.state_path.as_ref().map(|path| ("State path", code(path))));
        facts.extend(view.started_at.as_ref().map(|at| ("Started", html::time(at))));
        facts.extend(view.stopped_at.as_ref().map(|at| ("Stopped", html::time(at))));
        facts.extend(view.removed_at.as_ref().map(|at| ("Removed", html::time(at))));
        facts.extend(view.last_op_at.as_ref().map(|at| ("Last operation", html::time(at))));
        facts
    }

    /// The route from which the page's script follows the log.
    fn logs(&self) -> String {
        format!("api/v1/runtimes/{}/logs?follow=true&tail={TAIL}", self.runtime.path())
    }

    /// Identifies the current log. A new container or a restart begins a new log.
    fn log_version(&self) -> String {
        let view = &self.runtime.view;
        let started = view.started_at.map(|at| at.to_string()).unwrap_or_default();
        format!("{} {started}", view.container_id.as_deref().unwrap_or_default())
    }
}

/// The outcome of an operation, or its progress.
fn outcome(line: &OperationView) -> Markup {
    match (&line.outcome, &line.started_at) {
        (Some(outcome), _) if outcome == "success" => html::state("succeeded"),
        (Some(_), _) => html::state("failed"),
        (None, Some(_)) => html::state("working"),
        (None, None) => html::state("queued"),
    }
}

/// Who requested an operation: a principal, or the component that acted automatically.
fn requester(line: &OperationView) -> String {
    // An event's id is not useful to readers; show the actor instead.
    let reference = line.source_ref.as_deref().filter(|text| text.parse::<Uuid>().is_err()).unwrap_or(&line.actor);
    format!("{} · {reference}", line.source)
}
