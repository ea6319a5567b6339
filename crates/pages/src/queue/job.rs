//! The page of one job: signal, details, history, logs, artifacts, payload and actions.

use std::collections::HashMap;

use askama::Template;
use serde_json::Value;
use uuid::Uuid;
use wire::{ArtifactView, EtaBasis, HistoryItem, JobView, NextAction, SignalView, WhyView};

use crate::chart;
use crate::frame::{DashboardPage, Frame};
use crate::html::{self, Markup};
use crate::workflows::journal::{self, Journal};

/// Artifacts up to this size can be previewed on the page; larger ones can only be downloaded.
const PREVIEW_BYTES: i64 = 256 * 1024;

#[derive(Debug, Template)]
#[template(path = "job.html")]
pub struct JobPage {
    pub frame: Frame,
    pub job: JobView,
    /// `None` once the signal has expired.
    pub signal: Option<Signal>,
    /// Set for a job that is neither running nor ended.
    pub why: Option<WhyView>,
    pub history: Vec<HistoryItem>,
    pub artifacts: Vec<ArtifactView>,
    /// The dead letter of this job.
    pub dead_letter: Option<Uuid>,
    /// The name of the trigger that created the job, if the trigger still exists.
    pub trigger: Option<String>,
    /// True if the subject has a page. Jobs may name subjects that were never declared.
    pub has_subject_page: bool,
    /// `None` for a job without a journal.
    pub journal: Option<Journal>,
    /// Names of the workers that ran the job and are still registered.
    pub workers: HashMap<Uuid, String>,
}

#[derive(Debug)]
pub struct Signal {
    pub view: SignalView,
    /// Where the signal was read from (reported with TTFS events).
    pub source: &'static str,
    pub from_cache: bool,
}

impl JobPage {
    fn is_live(&self) -> bool {
        !matches!(self.job.state.as_str(), "succeeded" | "failed" | "canceled")
    }

    fn is_hidden(&self, member: &str) -> bool {
        self.job.redacted.iter().any(|hidden| hidden == member)
    }

    /// The error, unless the signal's summary already contains it.
    fn error_beyond_summary(&self) -> Option<&wire::JobError> {
        let error = self.job.error.as_ref()?;
        let is_in_summary = self.signal.as_ref().is_some_and(|signal| {
            signal.view.summary.contains(&error.code) && signal.view.summary.contains(&error.message)
        });
        (!is_in_summary).then_some(error)
    }

    fn eta(&self) -> Option<String> {
        Some(html::eta(&self.signal.as_ref()?.view.eta_seconds?))
    }

    /// What the ETA is based on, and how often such ETAs held.
    fn eta_basis(&self) -> Option<&EtaBasis> {
        self.signal.as_ref()?.view.eta_basis.as_ref()
    }

    /// The signature that predicts a failure of this job, or that matches its failure.
    fn matching_signature(&self) -> Option<MatchingSignature> {
        let signal = &self.signal.as_ref()?.view;
        let signature: Value =
            serde_json::from_str(signal.predicted.as_ref().or(signal.signature.as_ref())?.get()).ok()?;
        let text = |member: &str| signature[member].as_str().map(str::to_owned);
        Some(MatchingSignature {
            title: text("summary").or_else(|| text("likely_cause")).unwrap_or_else(|| "Known failure".into()),
            suggested_action: text("suggested_action"),
            remediation: text("remediation_url").and_then(|url| html::link(&self.frame.root, &url)),
            confidence_pct: (signature["confidence"].as_f64().unwrap_or(0.0) * 100.0).round() as i64,
        })
    }

    /// Links that the worker supplied. Links to this job's or queue's routes are omitted, because the page has them
    /// already.
    fn worker_links(&self) -> Vec<(String, String)> {
        let Some(signal) = &self.signal else { return Vec::new() };
        let is_external = |action: &&NextAction| {
            action.method.is_none()
                && !action.href.starts_with("/api/v1/jobs/")
                && !action.href.starts_with("/api/v1/queues/")
        };
        let link = |action: &NextAction| Some((html::link(&self.frame.root, &action.href)?, action.label.clone()));
        signal.view.next_actions.iter().filter(is_external).filter_map(link).collect()
    }

    /// The obstacle, unless the journal names what the job waits for.
    fn obstacle(&self) -> Option<&WhyView> {
        let is_named = self.journal.as_ref().is_some_and(|journal| !journal.open().is_empty());
        self.why.as_ref().filter(|why| why.reason != "waiting" || !is_named)
    }

    fn is_queue_paused(&self) -> bool {
        self.why.as_ref().is_some_and(|why| why.reason == "queue_paused")
    }

    fn facts(&self) -> Vec<(&'static str, Markup)> {
        let job = &self.job;
        let root = &self.frame.root;
        let text = |text: &str| Markup::new(html::escape(text));
        let filtered = |name: &str, value: &str| {
            let (address, shown) = (html::segment(value), html::escape(value));
            Markup::new(format!("<a href=\"{root}jobs?{name}={address}\">{shown}</a>"))
        };
        let linked = |id: &Uuid| {
            Markup::new(format!("<a class=\"id\" href=\"{root}jobs/{id}\" title=\"{id}\">{}</a>", html::short(id)))
        };
        let page = |page: DashboardPage, group: &str, name: &str| {
            self.frame.link(page, &format!("{group}/{}", html::segment(name)), name)
        };
        let mut facts = vec![
            ("Queue", page(DashboardPage::Queues, "queues", &job.queue)),
            ("Kind", page(DashboardPage::Workers, "kinds", &job.kind)),
        ];
        facts.extend(job.affinity.as_ref().map(|affinity| ("Affinity", filtered("affinity", affinity))));
        facts.extend(job.subject.as_ref().map(|subject| match self.has_subject_page {
            true => ("Subject", self.frame.subject(subject)),
            false => ("Subject", filtered("subject", subject)),
        }));
        facts.extend(job.process.as_ref().map(|process| ("Process", text(process))));
        facts.push(("Attempt", Markup::new(format!("{} of {}", job.attempt, job.max_attempts))));
        facts.extend((job.priority != 0).then(|| ("Priority", Markup::new(job.priority.to_string()))));
        facts.push(("Created", html::time(&job.created_at)));
        facts.push(("Due", html::time(&job.run_at)));
        facts.extend(job.started_at.as_ref().map(|at| ("Started", html::time(at))));
        facts.extend(job.finished_at.as_ref().map(|at| ("Finished", html::time(at))));
        if job.started_at.is_some() {
            facts.push(("Duration", html::took(&job.started_at, &job.finished_at)));
        }
        let run_page = |run: &str| format!("runs/{}", html::segment(run));
        facts.extend(job.run.as_ref().map(|run| ("Run", self.frame.link(DashboardPage::Runs, &run_page(run), run))));
        facts.extend(job.unique_key.as_ref().map(|key| ("Unique key", text(key))));
        facts.extend(job.concurrency_key.as_ref().map(|key| ("Concurrency key", text(key))));
        facts.extend(job.timeout_s.map(|seconds| ("Timeout", Markup::new(html::seconds(seconds as f64)))));
        if !job.tags.is_empty() {
            let tags: Vec<String> = job.tags.iter().map(|tag| filtered("tag", tag).to_string()).collect();
            facts.push(("Tags", Markup::new(tags.join(", "))));
        }
        facts.push(("Created by", text(&job.principal)));
        facts.extend(job.triggered_by.as_ref().filter(|by| *by != "api").map(|by| ("Triggered by", self.origin(by))));
        facts.extend(job.worker.as_ref().map(|worker| ("Worker", self.worker(worker))));
        facts.extend(job.parent.as_ref().map(|parent| ("Retry of", linked(parent))));
        facts.extend(job.retried_as.as_ref().map(|retry| ("Retried as", linked(retry))));
        facts.extend(job.webhook_url.as_ref().map(|url| ("Webhook", text(url))));
        facts
    }

    /// A description of what created the job.
    fn origin(&self, by: &str) -> Markup {
        let parts: Vec<&str> = by.splitn(5, ':').collect();
        let description = match parts.as_slice() {
            [what @ ("trigger" | "script"), id, _, source, op] => match id.parse::<Uuid>() {
                Ok(id) => {
                    let trigger = match &self.trigger {
                        Some(name) => self.frame.trigger(&id, name).to_string(),
                        None => format!("<code title=\"{id}\">{}</code>", html::short(&id)),
                    };
                    format!("{what} {trigger}, {} {}", html::escape(source), html::escape(op))
                }
                Err(_) => html::escape(by),
            },
            ["replay", ..] => "replay of a dead letter".into(),
            ["process", name] => format!("process {}", html::escape(name)),
            _ => html::escape(by),
        };
        Markup::new(description)
    }

    /// A worker's name while it is registered, else its id.
    fn worker(&self, id: &Uuid) -> Markup {
        Markup::new(match self.workers.get(id) {
            Some(name) => {
                let link = self.frame.link(DashboardPage::Workers, &format!("workers/{id}"), name);
                format!("<span title=\"{id}\">{link}</span>")
            }
            None => format!("<code title=\"{id}\">{}</code>", html::short(id)),
        })
    }

    fn artifact(&self, artifact: &ArtifactView) -> String {
        format!("{}{}", self.frame.root, self.route(artifact))
    }

    fn route(&self, artifact: &ArtifactView) -> String {
        format!("api/v1/jobs/{}/artifacts/{}", self.job.id, html::segment(&artifact.name))
    }

    /// The last log lines that the worker has reported.
    fn live_log(&self) -> Option<String> {
        let diagnostics = &self.signal.as_ref().filter(|_| self.is_live())?.view.diagnostics;
        let diagnostics: Value = serde_json::from_str(diagnostics.get()).ok()?;
        Some(diagnostics["log"].as_str()?.to_owned()).filter(|log| !log.is_empty())
    }

    /// The stored log of the last attempt that has one, if it is small enough to be shown.
    fn stored_log(&self) -> Option<&ArtifactView> {
        let attempt = |artifact: &&ArtifactView| match artifact.name.strip_prefix("log") {
            Some("") => Some(1),
            Some(rest) => rest.strip_prefix('-')?.parse::<u32>().ok(),
            None => None,
        };
        let logs = self.artifacts.iter().filter(|artifact| attempt(artifact).is_some());
        let last = logs.max_by_key(attempt).filter(|_| !self.is_live())?;
        (last.size <= PREVIEW_BYTES && self.frame.can.read_logs).then_some(last)
    }

    fn cli(&self) -> String {
        format!("windlass job get {}", self.job.id)
    }

    /// The request that enqueues an equal job.
    fn curl(&self) -> String {
        let mut request = serde_json::Map::new();
        let job = &self.job;
        request.insert("queue".into(), job.queue.clone().into());
        request.insert("kind".into(), job.kind.clone().into());
        let payload = serde_json::from_str(job.payload.get()).unwrap_or(Value::Null);
        request.insert("payload".into(), payload);
        for (member, value) in
            [("affinity", &job.affinity), ("subject", &job.subject), ("process", &job.process), ("run", &job.run)]
        {
            if let Some(value) = value {
                request.insert(member.into(), value.clone().into());
            }
        }
        if job.priority != 0 {
            request.insert("priority".into(), job.priority.into());
        }
        if !job.tags.is_empty() {
            request.insert("tags".into(), job.tags.clone().into());
        }
        // In single quotes only the quote itself is special to a shell.
        let body = Value::Object(request).to_string().replace('\'', "'\\''");
        format!("curl -X POST \"$WINDLASS_URL/api/v1/jobs\" -H 'content-type: application/json' -d '{body}'")
    }
}

/// For example "p90 held for 91 % of 214 earlier ETAs".
fn accuracy(basis: &EtaBasis) -> Option<String> {
    let held = basis.p90_held? * 100.0;
    Some(format!("p90 held for {held:.0} % of {} earlier ETAs", html::count(&(basis.answers as i64))))
}

/// The CSS class of a cause: highlighted only if something failed.
fn tone(item: &HistoryItem) -> &'static str {
    if matches!(item.event.as_str(), "failed" | "expired") { "cause" } else { "note-text" }
}

struct MatchingSignature {
    title: String,
    suggested_action: Option<String>,
    remediation: Option<String>,
    confidence_pct: i64,
}

/// How an artifact can be previewed: as text, as an image that cannot run scripts, or not at all.
fn preview(artifact: &ArtifactView) -> &'static str {
    let essence = artifact.content_type.split(';').next().unwrap_or_default().trim();
    match essence {
        _ if artifact.size > PREVIEW_BYTES => "",
        "image/png" | "image/jpeg" | "image/gif" | "image/webp" => "image",
        "application/json" | "application/x-ndjson" | "application/yaml" => "text",
        text if text.starts_with("text/") => "text",
        _ if is_log(artifact) => "text",
        _ => "",
    }
}

/// True if the reader may open the artifact. Logs have a right of their own.
fn readable(frame: &Frame, artifact: &ArtifactView) -> bool {
    if is_log(artifact) { frame.can.read_logs } else { frame.can.read_artifacts }
}

/// True for `log` and for `log-N` of a later attempt.
fn is_log(artifact: &ArtifactView) -> bool {
    artifact.name == "log" || artifact.name.starts_with("log-")
}
