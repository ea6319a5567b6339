//! What failed for good, with everything that is needed to play it again.

use askama::Template;
use wire::{DeadLetterView, Page};

use crate::frame::Frame;
use crate::html;

#[derive(Debug, Template)]
#[template(path = "dead_letters.html")]
pub struct DeadLetters {
    pub frame: Frame,
    pub filter: Filter,
    pub page: Page<DeadLetterView>,
}

/// What the address asks for, as it came.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub resolved: String,
    pub source: String,
    pub queue: String,
    pub kind: String,
    pub error_code: String,
    pub job_id: String,
    pub trigger_id: String,
}

impl Filter {
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

    fn is_asked(&self) -> bool {
        self.pairs().iter().any(|(_, value)| !value.is_empty())
    }

    fn shows_resolved(&self) -> bool {
        self.resolved == "true"
    }

    /// The same as the API takes it, for replaying all that match.
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

/// What it was: a kind in a queue, or what a trigger did.
fn what(letter: &DeadLetterView) -> String {
    match (&letter.kind, &letter.queue) {
        (Some(kind), Some(queue)) => format!("{kind} in {queue}"),
        (Some(kind), None) => kind.clone(),
        _ => format!("{} {}", letter.source, letter.op),
    }
}
