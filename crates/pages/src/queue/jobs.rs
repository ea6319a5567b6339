//! The jobs page: jobs that match a filter, newest first.

use askama::Template;
use jiff::Timestamp;
use wire::{JobView, Page, QueueCounts};

use super::push::PushForm;
use crate::chart;
use crate::frame::Frame;
use crate::html::{self, Markup};

#[derive(Debug, Template)]
#[template(path = "jobs.html")]
pub struct Jobs {
    pub frame: Frame,
    pub filter: JobFilter,
    pub page: Page<JobView>,
    /// Jobs of Windlass itself that this page leaves out: their queues, each with its number of jobs.
    pub system: Vec<(String, usize)>,
    /// The creation time of the oldest job that was searched, if older ones may match.
    pub searched_to: Option<Timestamp>,
    /// Counts over all queues; `None` for readers who may not see all queues.
    pub totals: Option<QueueCounts>,
    /// Suggestions for each datalist of the form.
    pub completions: Vec<(&'static str, Vec<String>)>,
    pub push: PushForm,
}

/// The filter parameters of the URL, unparsed.
#[derive(Clone, Debug, Default)]
pub struct JobFilter {
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

impl JobFilter {
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

    /// The address of the first page with one parameter changed; an empty value removes the parameter.
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

    /// The active filters other than the state, each of which can be removed.
    fn chips(&self) -> Vec<(&'static str, &str)> {
        self.pairs().into_iter().skip(1).filter(|(_, value)| !value.is_empty()).collect()
    }

    fn is_empty(&self) -> bool {
        self.pairs().iter().all(|(_, value)| value.is_empty())
    }

    /// The query of the event stream for these jobs. The stream supports fewer filters than the listing, so it may
    /// report more jobs than are shown.
    fn stream(&self) -> String {
        let supported = self
            .pairs()
            .into_iter()
            .filter(|(key, value)| matches!(*key, "queue" | "kind" | "subject" | "run") && !value.is_empty());
        let query: String = supported.map(|(key, value)| format!("&{key}={}", html::segment(value))).collect();
        format!("?only=changes{query}")
    }
}

impl JobFilter {
    /// What was searched for the filter.
    fn searched(&self) -> &'static str {
        match self.text.is_empty() {
            true => "This filter has no index, so that only the newest jobs were searched",
            false => {
                "Kinds, tags, keys and error codes of all jobs were searched, payloads and messages of the newest ones"
            }
        }
    }
}

const STATES: [&str; 8] = ["waiting", "scheduled", "queued", "loading", "working", "succeeded", "failed", "canceled"];

impl Jobs {
    fn states(&self) -> [&'static str; 8] {
        STATES
    }

    fn is_selected(&self, state: &str) -> bool {
        self.filter.state == state
    }

    /// The number of jobs in a state, if a counter exists for it and no other filter is active. Loading and working
    /// jobs share one counter, so neither has a total of its own.
    fn total(&self, state: &str) -> Option<String> {
        let totals = self.totals.as_ref().filter(|_| self.filter.chips().is_empty())?;
        let total = match state {
            "waiting" => totals.waiting,
            "scheduled" => totals.scheduled,
            "queued" => totals.queued,
            "succeeded" => totals.succeeded,
            "failed" => totals.failed,
            "canceled" => totals.canceled,
            _ => return None,
        };
        Some(chart::compact(total))
    }

    /// True if rows can be selected for bulk actions.
    fn can_select(&self) -> bool {
        self.frame.can.operate && !self.page.items.is_empty()
    }
}

/// The status column of a job's row.
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
            format!("<code>{}</code> {}", html::escape(&error.code), html::prose(html::first_line(&error.message)))
        }),
        "succeeded" => html::took(&job.started_at, &job.finished_at).to_string(),
        _ => String::new(),
    };
    Markup::new(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Can;

    #[test]
    fn an_empty_page_links_to_older_jobs() {
        let frame = Frame {
            title: "Jobs".into(),
            root: "./".into(),
            current: None,
            trail: Vec::new(),
            pages: Vec::new(),
            principal: "local".into(),
            signed_in: false,
            can: Can::default(),
            dead_letters: None,
            now: Timestamp::UNIX_EPOCH,
            release: "0",
        };
        let page = Page { items: Vec::new(), next_cursor: Some("further".into()), partial: false };
        let jobs = Jobs {
            frame,
            filter: JobFilter::default(),
            page,
            system: Vec::new(),
            searched_to: None,
            totals: None,
            completions: Vec::new(),
            push: PushForm::default(),
        };
        let html = jobs.render().unwrap();
        assert!(html.contains("No match among the searched jobs") && html.contains("?cursor=further"), "{html}");
    }
}
