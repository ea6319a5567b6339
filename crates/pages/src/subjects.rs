//! The fleet: one row per subject, one column per process; and everything about one subject.

use askama::Template;
use wire::{Page, ProcessView, StandingView, SubjectView, TimelineItem};

use crate::frame::Frame;
use crate::history;
use crate::html::{self, Markup};

#[derive(Debug, Template)]
#[template(path = "subjects.html")]
pub struct Subjects {
    pub frame: Frame,
    pub kind: String,
    pub prefix: String,
    pub page: Page<SubjectView>,
    pub processes: Vec<ProcessView>,
}

impl Subjects {
    fn next(&self, cursor: &str) -> String {
        let pairs = [("kind", self.kind.as_str()), ("prefix", &self.prefix), ("cursor", cursor)];
        let pairs = pairs.iter().filter(|(_, value)| !value.is_empty());
        let pairs: Vec<String> = pairs.map(|(name, value)| format!("{name}={}", html::segment(value))).collect();
        format!("subjects?{}", pairs.join("&"))
    }

    fn is_asked(&self) -> bool {
        !self.kind.is_empty() || !self.prefix.is_empty()
    }
}

/// How a subject stands with a process: at work, held back until when and why, eligible, or nothing.
fn cell(subject: &SubjectView, process: &ProcessView) -> Markup {
    let held = subject.backoffs.iter().find(|backoff| backoff.process == process.name || backoff.process == "*");
    let standing = subject.processes.iter().flatten().find(|standing| standing.process == process.name);
    match (standing.map(|standing| standing.standing.as_str()), held) {
        (Some("active"), _) => html::state("working"),
        (_, Some(backoff)) => {
            let word = if backoff.until.is_some() { "backoff" } else { "locked" };
            let until = backoff.until.as_ref().map(|until| html::ago(until).to_string()).unwrap_or_default();
            let cause = html::escape(&backoff.cause);
            Markup::new(format!("<span title=\"{cause}\">{}</span> {until}", html::state(word)))
        }
        (Some(word), None) if word != "ineligible" => html::state(if word == "in_backoff" { "backoff" } else { word }),
        _ => html::none(),
    }
}

#[derive(Debug, Template)]
#[template(path = "subject.html")]
pub struct SubjectPage {
    pub frame: Frame,
    pub subject: SubjectView,
    pub history: Page<TimelineItem>,
}

impl SubjectPage {
    fn path(&self) -> String {
        html::segment(&self.subject.id)
    }

    fn standings(&self) -> &[StandingView] {
        self.subject.processes.as_deref().unwrap_or_default()
    }

    fn is_locked_out(&self) -> bool {
        self.subject.backoffs.iter().any(|backoff| backoff.process == "*")
    }
}
