//! The jobs that match a filter, newest first, page by page.

use askama::Template;
use wire::{JobView, Page, QueueCounts};

use crate::chart;
use crate::frame::Frame;
use crate::html::{self, Markup};

#[derive(Debug, Template)]
#[template(path = "jobs.html")]
pub struct Jobs {
    pub frame: Frame,
    pub filter: Filter,
    pub page: Page<JobView>,
    /// Kept figures over all queues; only for those who may see them all.
    pub totals: Option<QueueCounts>,
    /// Words to choose from, by the list that a field names.
    pub completions: Vec<(&'static str, Vec<String>)>,
}

/// What the address asks for, as it came.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub state: String,
    pub queue: String,
    pub kind: String,
    pub affinity: String,
    pub subject: String,
    pub run: String,
    pub tag: String,
    pub since: String,
    pub until: String,
    pub text: String,
    pub cursor: String,
}

impl Filter {
    fn pairs(&self) -> [(&'static str, &str); 10] {
        [
            ("state", &self.state),
            ("queue", &self.queue),
            ("kind", &self.kind),
            ("affinity", &self.affinity),
            ("subject", &self.subject),
            ("run", &self.run),
            ("tag", &self.tag),
            ("since", &self.since),
            ("until", &self.until),
            ("text", &self.text),
        ]
    }

    /// The address with one parameter set to another value, or taken away by an empty one, on the first page.
    fn with(&self, name: &str, value: &str) -> String {
        let pairs = self.pairs().map(|(key, old)| (key, if key == name { value } else { old }));
        let mut pairs: Vec<String> = pairs
            .iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(key, value)| format!("{key}={}", html::segment(value)))
            .collect();
        if name == "cursor" {
            pairs.push(format!("cursor={}", html::segment(value)));
        }
        format!("?{}", pairs.join("&"))
    }

    /// What is asked for beside the state, to be taken away one by one.
    fn chips(&self) -> Vec<(&'static str, &str)> {
        self.pairs().into_iter().skip(1).filter(|(_, value)| !value.is_empty()).collect()
    }

    fn is_empty(&self) -> bool {
        self.pairs().iter().all(|(_, value)| value.is_empty())
    }

    /// The stream that tells of these jobs: it knows fewer filters than the listing, and shows more rather than less.
    fn stream(&self) -> String {
        let known = self
            .pairs()
            .into_iter()
            .filter(|(key, value)| matches!(*key, "queue" | "kind" | "subject" | "run") && !value.is_empty());
        let known: Vec<String> = known.map(|(key, value)| format!("{key}={}", html::segment(value))).collect();
        if known.is_empty() { String::new() } else { format!("?{}", known.join("&")) }
    }
}

const STATES: [&str; 7] = ["scheduled", "queued", "loading", "working", "succeeded", "failed", "canceled"];

impl Jobs {
    fn states(&self) -> [&'static str; 7] {
        STATES
    }

    fn is_asked(&self, state: &str) -> bool {
        self.filter.state == state
    }

    /// How many there are in this state, where that is kept and nothing else is asked for. Those that load and those that
    /// work are kept as one figure, which is none of either.
    fn total(&self, state: &str) -> Option<String> {
        let totals = self.totals.as_ref().filter(|_| self.filter.chips().is_empty())?;
        let total = match state {
            "scheduled" => totals.scheduled,
            "queued" => totals.queued,
            "succeeded" => totals.succeeded,
            "failed" => totals.failed,
            "canceled" => totals.canceled,
            _ => return None,
        };
        Some(chart::compact(total))
    }

    /// Whether the rows may be chosen for something.
    fn can_choose(&self) -> bool {
        self.frame.can.operate && !self.page.items.is_empty()
    }
}

/// What a row says of its job, in a few words.
fn note(job: &JobView) -> Markup {
    let text = match job.state.as_str() {
        "scheduled" => format!("due {}", html::ago(&job.run_at)),
        "queued" => format!("waiting {}", html::took(&Some(job.run_at), &None)),
        "loading" | "working" => {
            let done = |share: f64| format!("{} {:.0} %", chart::meter(&share, "progress"), share * 100.0);
            let phase = job.phase.as_deref().map(html::escape);
            let parts = [job.progress.map(done), phase, Some(html::took(&job.started_at, &None).to_string())];
            parts.into_iter().flatten().collect::<Vec<String>>().join(" · ")
        }
        "failed" => job.error.as_ref().map_or_else(String::new, |error| {
            format!("<code>{}</code> {}", html::escape(&error.code), html::escape(&error.message))
        }),
        "succeeded" => html::took(&job.started_at, &job.finished_at).to_string(),
        _ => String::new(),
    };
    Markup::new(text)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::frame::Can;

    #[test]
    fn an_empty_page_leads_to_the_older_jobs_that_there_are() {
        let frame = Frame {
            title: "Jobs".into(),
            root: "./".into(),
            here: None,
            places: Vec::new(),
            who: "local".into(),
            signed_in: false,
            can: Can::default(),
            dead_letters: None,
            now: Timestamp::UNIX_EPOCH,
            release: "0",
        };
        let page = Page { items: Vec::new(), next_cursor: Some("further".into()), partial: false };
        let jobs = Jobs { frame, filter: Filter::default(), page, totals: None, completions: Vec::new() };
        let html = jobs.render().unwrap();
        assert!(html.contains("None among those looked at") && html.contains("?cursor=further"), "{html}");
    }
}
