//! The subjects page (one row per subject, one column per process) and the page of one subject.

use askama::Template;
use jiff::Timestamp;
use wire::{BackoffView, Page, ProcessView, StandingView, SubjectView, TimelineItem};

use crate::access::history;
use crate::frame::Frame;
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

    fn is_filtered(&self) -> bool {
        !self.kind.is_empty() || !self.prefix.is_empty()
    }
}

/// CSS class for the longest backoff of a subject in a process: up to 10 minutes, up to 6 hours, or longer.
fn heat(subject: &SubjectView, process: &ProcessView, now: &Timestamp) -> &'static str {
    let backoffs = subject.backoffs.iter().filter(|backoff| backoff.process == process.name || backoff.process == "*");
    let remaining_s = |until: Option<Timestamp>| until.map_or(i64::MAX, |until| until.duration_since(*now).as_secs());
    heat_class(backoffs.map(|backoff| remaining_s(backoff.until)).max().unwrap_or(0))
}

fn heat_class(remaining_s: i64) -> &'static str {
    match remaining_s {
        ..=0 => "",
        1..=600 => "heat-1",
        601..=21_600 => "heat-2",
        _ => "heat-3",
    }
}

/// The state of a subject in a process: active, in backoff (with end and cause), eligible, or none.
fn cell(subject: &SubjectView, process: &ProcessView) -> Markup {
    let backoff = subject.backoffs.iter().find(|backoff| backoff.process == process.name || backoff.process == "*");
    let standing = subject.processes.iter().flatten().find(|standing| standing.process == process.name);
    match (standing.map(|standing| standing.standing.as_str()), backoff) {
        (Some("active"), _) => html::state("working"),
        (_, Some(backoff)) => {
            let state = backoff_state(backoff);
            let until = backoff.until.as_ref().map(|until| html::ago(until).to_string()).unwrap_or_default();
            let cause = html::escape(&backoff.cause);
            Markup::new(format!("<span title=\"{cause}\">{}</span> {until}", html::state(state)))
        }
        (Some(state), None) if state != "ineligible" => {
            html::state(if state == "in_backoff" { "backoff" } else { state })
        }
        _ => html::none(),
    }
}

/// `locked` for a lockout (a backoff for all processes, or one without an end), else `backoff`.
fn backoff_state(backoff: &BackoffView) -> &'static str {
    if backoff.process == "*" || backoff.until.is_none() { "locked" } else { "backoff" }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lockout_with_an_end_is_shown_as_locked() {
        let state = |process: &str, until: &str| {
            let backoff = format!(
                r#"{{"process":"{process}","until":{until},"cause":"c","by":"b","at":"2026-01-01T00:00:00Z","job_id":null}}"#
            );
            backoff_state(&serde_json::from_str(&backoff).expect("a backoff"))
        };
        let until = r#""2026-01-02T00:00:00Z""#;
        assert_eq!([state("*", until), state("patch", until), state("patch", "null")], ["locked", "backoff", "locked"]);
    }

    #[test]
    fn a_longer_backoff_has_a_hotter_color_class() {
        let classes = [-1, 0, 60, 3_600, 90_000, i64::MAX].map(heat_class);
        assert_eq!(classes, ["", "", "heat-1", "heat-2", "heat-3", "heat-3"]);
    }
}
