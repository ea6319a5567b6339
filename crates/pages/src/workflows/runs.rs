//! The runs page: runs that match a filter, newest first.

use askama::Template;
use wire::{Page, RunView};

use crate::frame::Frame;
use crate::html::{self, Markup};
use crate::waterfall;

#[derive(Debug, Template)]
#[template(path = "runs.html")]
pub struct Runs {
    pub frame: Frame,
    pub filter: RunFilters,
    pub page: Page<RunView>,
}

/// The filter parameters of the URL, unparsed.
#[derive(Clone, Debug, Default)]
pub struct RunFilters {
    pub state: String,
    pub name: String,
    pub tag: String,
    pub cursor: String,
}

impl RunFilters {
    fn pairs(&self) -> [(&'static str, &str); 3] {
        [("state", &self.state), ("name", &self.name), ("tag", &self.tag)]
    }

    /// The address of the first page with one parameter changed; an empty value removes the parameter.
    fn with(&self, name: &str, value: &str) -> String {
        let pairs = self.pairs().map(|(key, old)| (key, if key == name { value } else { old }));
        let cursor = [("cursor", if name == "cursor" { value } else { "" })];
        let pairs = pairs.into_iter().chain(cursor).filter(|(_, value)| !value.is_empty());
        let pairs: Vec<String> = pairs.map(|(key, value)| format!("{key}={}", html::segment(value))).collect();
        format!("runs?{}", pairs.join("&"))
    }

    fn is_empty(&self) -> bool {
        self.pairs().iter().all(|(_, value)| value.is_empty())
    }
}

const STATES: [&str; 4] = ["running", "succeeded", "failed", "canceled"];

impl Runs {
    fn states(&self) -> [&'static str; 4] {
        STATES
    }

    fn is_selected(&self, state: &str) -> bool {
        self.filter.state == state
    }
}

/// The name of a run, else its id.
pub(crate) fn title(run: &RunView) -> String {
    run.name.clone().unwrap_or_else(|| run.id.clone())
}

/// The counts of a run as text, such as "3 of 5 ended, 1 failed".
pub(crate) fn counts(run: &RunView) -> String {
    let ended = run.counts.succeeded + run.counts.failed + run.counts.canceled;
    let mut text = format!("{} of {} ended", html::count(&ended), html::count(&(ended + run.counts.live)));
    for (number, what) in [(run.counts.failed, "failed"), (run.counts.canceled, "canceled")] {
        if number > 0 {
            text.push_str(&format!(", {} {what}", html::count(&number)));
        }
    }
    text
}

/// The outcomes of a run's jobs as a bar.
pub(crate) fn bar(run: &RunView) -> Markup {
    let of = &run.counts;
    let shares = [("good", of.succeeded), ("bad", of.failed), ("off", of.canceled), ("rest", of.live)];
    waterfall::shares(&shares, &counts(run))
}

fn took(run: &RunView) -> Markup {
    html::took(&Some(run.created_at), &run.finished_at)
}
