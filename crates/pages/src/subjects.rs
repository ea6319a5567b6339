//! The fleet: one row per subject, one column per process; and everything about one subject.

use askama::Template;
use jiff::Timestamp;
use wire::{BackoffView, Page, ProcessView, StandingView, SubjectView, TimelineItem};

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

/// How long a subject is still held back from a process, as one of three heats: minutes, hours, or longer and until lifted.
fn heat(subject: &SubjectView, process: &ProcessView, now: &Timestamp) -> &'static str {
    let held = subject.backoffs.iter().filter(|backoff| backoff.process == process.name || backoff.process == "*");
    let left_s = |until: Option<Timestamp>| until.map_or(i64::MAX, |until| until.duration_since(*now).as_secs());
    degree(held.map(|backoff| left_s(backoff.until)).max().unwrap_or(0))
}

fn degree(left_s: i64) -> &'static str {
    match left_s {
        ..=0 => "",
        1..=600 => "heat-1",
        601..=21_600 => "heat-2",
        _ => "heat-3",
    }
}

/// How a subject stands with a process: at work, held back until when and why, eligible, or nothing.
fn cell(subject: &SubjectView, process: &ProcessView) -> Markup {
    let held = subject.backoffs.iter().find(|backoff| backoff.process == process.name || backoff.process == "*");
    let standing = subject.processes.iter().flatten().find(|standing| standing.process == process.name);
    match (standing.map(|standing| standing.standing.as_str()), held) {
        (Some("active"), _) => html::state("working"),
        (_, Some(backoff)) => {
            let word = held_word(backoff);
            let until = backoff.until.as_ref().map(|until| html::ago(until).to_string()).unwrap_or_default();
            let cause = html::escape(&backoff.cause);
            Markup::new(format!("<span title=\"{cause}\">{}</span> {until}", html::state(word)))
        }
        (Some(word), None) if word != "ineligible" => html::state(if word == "in_backoff" { "backoff" } else { word }),
        _ => html::none(),
    }
}

/// A person's word for all processes is a lock, with an end or without; so is what has none.
fn held_word(backoff: &BackoffView) -> &'static str {
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
    fn a_lock_is_a_lock_although_it_ends() {
        let held = |process: &str, until: &str| {
            let backoff = format!(
                r#"{{"process":"{process}","until":{until},"cause":"c","by":"b","at":"2026-01-01T00:00:00Z","job_id":null}}"#
            );
            held_word(&serde_json::from_str(&backoff).expect("a backoff"))
        };
        let until = r#""2026-01-02T00:00:00Z""#;
        assert_eq!([held("*", until), held("patch", until), held("patch", "null")], ["locked", "backoff", "locked"]);
    }

    #[test]
    fn the_longer_a_subject_is_held_back_the_hotter_it_is() {
        let told = [-1, 0, 60, 3_600, 90_000, i64::MAX].map(degree);
        assert_eq!(told, ["", "", "heat-1", "heat-2", "heat-3", "heat-3"]);
    }
}
