//! The journal of a job as a waterfall, with what the job waits for and the answers to approvals.

use jiff::Timestamp;
use serde_json::Value;
use wire::{JournalEntry, JournalView};

use crate::html::{self, Markup};
use crate::waterfall::{Span, TimeScale};

/// Bytes shown of a result, of an error and of the data of a step.
const SHOWN_BYTES: usize = 4 * 1024;

/// The part of a journal that a page shows.
#[derive(Debug)]
pub struct Journal {
    pub view: JournalView,
    /// True if the page does not begin with the first entry.
    pub is_later_page: bool,
    /// The rights of the reader, by the names that approvals use.
    pub rights: Vec<&'static str>,
    /// The start of the job, and its end or the current time.
    pub from: Timestamp,
    pub until: Timestamp,
    pub job_is_live: bool,
}

impl Journal {
    pub(crate) fn is_hidden(&self, member: &str) -> bool {
        self.view.redacted.iter().any(|hidden| hidden == member)
    }

    /// A later page shows its own period only.
    pub(crate) fn scale(&self) -> TimeScale {
        let first = self.view.items.first().map_or(self.from, |entry| entry.created_at);
        TimeScale { from: if self.is_later_page { first } else { self.from.min(first) }, until: self.until }
    }

    /// Operations that the job may be waiting for.
    pub(crate) fn open(&self) -> Vec<&JournalEntry> {
        let entries = self.view.items.iter().filter(|_| self.job_is_live);
        entries.filter(|entry| entry.status == "open" && entry.op != "step").collect()
    }

    /// True if the reader may answer an approval. The route checks the right again.
    pub(crate) fn can_answer(&self, entry: &JournalEntry) -> bool {
        let right = input(entry, "right").unwrap_or_else(|| "operate".to_owned());
        is_open_approval(entry) && self.job_is_live && self.rights.contains(&right.as_str())
    }

    /// The intervals of an entry: its failed attempts as marks, and the time that it ran or waited.
    pub(crate) fn bar(&self, entry: &JournalEntry) -> Markup {
        let scale = self.scale();
        let until = entry.resolved_at.unwrap_or(scale.until);
        let mut spans = Vec::new();
        match entry.op.as_str() {
            "step" | "publish" => {
                let measured = entry.duration_ms.map(jiff::SignedDuration::from_millis);
                let ran_since =
                    measured.and_then(|measured| until.checked_sub(measured).ok()).unwrap_or(entry.created_at);
                let class = match (&entry.error, entry.status.as_str()) {
                    (Some(_), _) => "bad",
                    (None, "resolved") => "good",
                    _ => "busy",
                };
                if entry.created_at < ran_since {
                    spans.push(Span::new(entry.created_at, ran_since, "waits", "between attempts"));
                }
                spans.push(Span::new(ran_since, until, class, &entry.key));
            }
            _ => {
                spans.push(Span::new(entry.created_at, until, "waits", &self::waits(entry)));
                spans.extend(entry.resolved_at.map(|at| Span::mark(at, "resolved")));
            }
        }
        for failed in &entry.attempts {
            spans.push(Span::new(
                failed.at,
                failed.at,
                "bad",
                &format!("attempt {} failed: {}", failed.attempt, failed.code),
            ));
        }
        scale.bar(&spans)
    }

    pub(crate) fn took(&self, entry: &JournalEntry) -> Markup {
        match (entry.duration_ms, entry.resolved_at) {
            (Some(ms), _) => Markup::new(html::seconds(ms as f64 / 1_000.0)),
            (None, None) if self.job_is_live => html::took(&Some(entry.created_at), &None),
            (None, resolved_at) => {
                resolved_at.map_or_else(html::none, |at| html::took(&Some(entry.created_at), &Some(at)))
            }
        }
    }
}

fn is_open_approval(entry: &JournalEntry) -> bool {
    entry.op == "approval" && entry.status == "open"
}

/// A text member of what an operation asks.
fn input(entry: &JournalEntry, member: &str) -> Option<String> {
    let input: Value = serde_json::from_str(entry.input.as_ref()?.get()).ok()?;
    input[member].as_str().map(str::to_owned)
}

/// The title of an approval, else its key.
pub(crate) fn asked(entry: &JournalEntry) -> String {
    input(entry, "title").unwrap_or_else(|| entry.key.clone())
}

pub(crate) fn detail(entry: &JournalEntry) -> Option<String> {
    input(entry, "detail")
}

/// What an operation waits for, as text.
pub(crate) fn waits(entry: &JournalEntry) -> String {
    match entry.op.as_str() {
        "sleep" => "sleep".to_owned(),
        "event" => format!("event {}", input(entry, "name").unwrap_or_else(|| entry.key.clone())),
        "approval" => format!("approval: {}", asked(entry)),
        "child" => "child jobs".to_owned(),
        other => other.to_owned(),
    }
}

/// `open`, or how an operation was resolved.
pub(crate) fn state(entry: &JournalEntry) -> &'static str {
    match (entry.status.as_str(), &entry.error, entry.op.as_str()) {
        ("open", _, "step") => "retrying",
        ("open", ..) => "waiting",
        (_, Some(error), _) if error.code == "timeout" => "timeout",
        (_, Some(_), _) => "failed",
        (_, None, "approval") if result_member(entry, "approved") == Some(Value::Bool(false)) => "rejected",
        (_, None, "approval") => "approved",
        _ => "succeeded",
    }
}

fn result_member(entry: &JournalEntry, member: &str) -> Option<Value> {
    let result: Value = serde_json::from_str(entry.result.as_ref()?.get()).ok()?;
    result.get(member).cloned()
}

/// The result of an entry, indented and truncated.
pub(crate) fn result(entry: &JournalEntry) -> Option<String> {
    let result = entry.result.as_ref()?;
    Some(html::cut(html::json(result), SHOWN_BYTES))
}

pub(crate) fn has_details(entry: &JournalEntry) -> bool {
    entry.result.is_some() || entry.error.is_some() || !entry.attempts.is_empty()
}

/// The request body that answers an approval.
pub(crate) fn answer(approve: &bool) -> String {
    serde_json::json!({ "approve": approve }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(members: Value) -> JournalEntry {
        let mut entry = serde_json::json!({"key": "k", "op": "step", "status": "resolved", "position": 1, "attempt": 1,
            "bytes": 9, "created_at": "2026-01-01T00:00:10Z", "resolved_at": "2026-01-01T00:00:20Z"});
        for (name, value) in members.as_object().expect("members") {
            entry[name] = value.clone();
        }
        serde_json::from_value(entry).expect("an entry")
    }

    fn journal(entries: Vec<JournalEntry>) -> Journal {
        let time = |text: &str| text.parse().expect("a time");
        let view = JournalView {
            entries: entries.len() as i64,
            items: entries,
            next_cursor: None,
            resolved: 0,
            bytes: 0,
            warnings: Vec::new(),
            redacted: Vec::new(),
        };
        let (from, until) = (time("2026-01-01T00:00:00Z"), time("2026-01-01T00:00:40Z"));
        Journal { view, is_later_page: false, rights: vec!["operate"], from, until, job_is_live: true }
    }

    #[test]
    fn a_step_is_drawn_with_its_measured_duration_and_its_failed_attempts() {
        let failed =
            serde_json::json!([{"attempt": 1, "at": "2026-01-01T00:00:10Z", "code": "TIMEOUT", "message": "m"}]);
        let step = entry(serde_json::json!({"duration_ms": 5_000, "attempt": 2, "attempts": failed}));
        let bar = journal(vec![step.clone()]).bar(&step).to_string();
        assert!(bar.contains("class=\"waits\" x=\"250.0\" y=\"6\" width=\"125.0\""), "until the second attempt: {bar}");
        assert!(bar.contains("class=\"good\" x=\"375.0\" y=\"2\" width=\"125.0\""), "{bar}");
        assert!(bar.contains("attempt 1 failed: TIMEOUT"), "{bar}");
    }

    #[test]
    fn an_open_approval_can_be_answered_with_the_right_that_it_names() {
        let ask = |right: &str| {
            entry(serde_json::json!({"op": "approval", "status": "open", "resolved_at": null,
                "input": {"title": "Deploy?", "right": right}}))
        };
        let journal = journal(vec![ask("operate")]);
        assert!(journal.can_answer(&ask("operate")) && !journal.can_answer(&ask("manage_tokens")));
        assert_eq!((state(&ask("operate")), waits(&ask("operate"))), ("waiting", "approval: Deploy?".to_owned()));
        let answered = |approved| entry(serde_json::json!({"op": "approval", "result": {"approved": approved}}));
        assert_eq!((state(&answered(true)), state(&answered(false))), ("approved", "rejected"));
        assert!(!journal.can_answer(&answered(true)));
    }
}
