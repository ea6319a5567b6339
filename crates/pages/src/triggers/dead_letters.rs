//! The dead letters page: dead letters with their errors, replay and resolution.

use askama::Template;
use jiff::Timestamp;
use wire::{DeadLetterView, Page};

use crate::frame::Frame;
use crate::html;

#[derive(Debug, Template)]
#[template(path = "dead_letters.html")]
pub struct DeadLetters {
    pub frame: Frame,
    pub filter: DeadLetterFilters,
    pub page: Page<DeadLetterView>,
    /// Unresolved letters by what failed, the largest group first. Empty with a filter.
    pub groups: Vec<LetterGroup>,
    /// Only the newest letters were grouped.
    pub groups_are_partial: bool,
}

/// Letters with the same failure.
#[derive(Clone, Debug)]
pub struct LetterGroup {
    /// Selects the letters of the group.
    pub filter: DeadLetterFilters,
    pub title: String,
    pub error_code: String,
    pub message: String,
    pub count: i64,
    pub oldest_at: Timestamp,
    pub newest_at: Timestamp,
}

impl LetterGroup {
    /// Stable while the group lasts, for live updates.
    fn id(&self) -> String {
        html::segment(&self.filter.address("", "")).replace('%', "-")
    }

    /// The query that lists the group's letters.
    fn query(&self) -> String {
        self.filter.address("false", "")
    }

    fn letters(&self) -> String {
        let noun = if self.count == 1 { "dead letter" } else { "dead letters" };
        format!("{} {noun}", html::count(&self.count))
    }
}

/// The filter parameters of the URL, unparsed.
#[derive(Clone, Debug, Default)]
pub struct DeadLetterFilters {
    pub resolved: String,
    pub source: String,
    pub queue: String,
    pub kind: String,
    pub error_code: String,
    pub job_id: String,
    pub trigger_id: String,
    pub cursor: String,
}

impl DeadLetterFilters {
    fn pairs(&self) -> [(&'static str, &str); 6] {
        [
            ("source", &self.source),
            ("queue", &self.queue),
            ("kind", &self.kind),
            ("error_code", &self.error_code),
            ("job_id", &self.job_id),
            ("trigger_id", &self.trigger_id),
        ]
    }

    fn address(&self, resolved: &str, cursor: &str) -> String {
        let pairs = self.pairs().into_iter().chain([("resolved", resolved), ("cursor", cursor)]);
        let pairs: Vec<String> = pairs
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| format!("{name}={}", html::segment(value)))
            .collect();
        format!("dead-letters?{}", pairs.join("&"))
    }

    fn is_filtered(&self) -> bool {
        self.pairs().iter().any(|(_, value)| !value.is_empty())
    }

    /// True for the first page of all unresolved letters.
    pub fn is_unfiltered(&self) -> bool {
        !self.is_filtered() && !self.shows_resolved() && self.cursor.is_empty()
    }

    fn shows_resolved(&self) -> bool {
        self.resolved == "true"
    }

    /// The filter as a request body for replaying all matching dead letters.
    fn body(&self) -> String {
        let members = self.pairs().into_iter().filter(|(_, value)| !value.is_empty());
        let members: serde_json::Map<String, serde_json::Value> =
            members.map(|(name, value)| (name.to_owned(), value.into())).collect();
        serde_json::json!({ "filter": members }).to_string()
    }
}

impl DeadLetters {
    fn can_manage(&self) -> bool {
        self.frame.can.manage_dead_letters && !self.filter.shows_resolved()
    }
}

/// What failed: a kind in a queue, or an event of a trigger.
fn title(letter: &DeadLetterView) -> String {
    match (&letter.kind, &letter.queue) {
        (Some(kind), Some(queue)) => format!("{kind} in {queue}"),
        (Some(kind), None) => kind.clone(),
        _ => format!("{} {}", letter.source, letter.op),
    }
}
