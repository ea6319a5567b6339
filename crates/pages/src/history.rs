//! Everything that was done, by whom, newest first; and the same of one thing.

use std::fmt::Write;

use askama::Template;
use wire::{Page, TimelineItem};

use crate::frame::Frame;
use crate::html::{self, Markup};

#[derive(Debug, Template)]
#[template(path = "history.html")]
pub struct History {
    pub frame: Frame,
    pub page: Page<TimelineItem>,
}

/// Items as a list that reads from top to bottom.
pub(crate) fn timeline(items: &[TimelineItem], root: &str) -> Markup {
    if items.is_empty() {
        return Markup::new("<p class=\"muted\">Nothing yet.</p>".into());
    }
    let mut list = String::from("<ol class=\"timeline\">");
    for item in items {
        let class = if item.event.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_') {
            &item.event
        } else {
            "other"
        };
        let event = html::escape(&item.event).replace('_', " ");
        let _ =
            write!(list, "<li class=\"event-{class}\"><span class=\"event\">{event}</span> {}", html::time(&item.at));
        if let Some(subject) = &item.subject {
            let _ =
                write!(list, " <a href=\"{root}subjects/{}\">{}</a>", html::segment(subject), html::escape(subject));
        }
        let rest = [("", &item.runtime), ("", &item.process), ("by ", &item.actor)];
        for (word, text) in rest.iter().filter_map(|(word, text)| text.as_ref().map(|text| (word, text))) {
            let _ = write!(list, " <span class=\"muted\">{word}{}</span>", html::escape(text));
        }
        if let Some(job) = &item.job_id {
            let _ = write!(list, " <a class=\"id\" href=\"{root}jobs/{job}\">{}</a>", html::short(job));
        }
        if let Some(cause) = &item.cause {
            let _ = write!(list, "<div class=\"cause\">{}</div>", html::escape(cause));
        }
        if let Some(detail) = item.detail.as_ref().filter(|detail| detail.get() != "null") {
            let _ = write!(list, "<div><code>{}</code></div>", html::escape(&html::cut(detail.get().to_owned(), 400)));
        }
        list.push_str("</li>");
    }
    list.push_str("</ol>");
    Markup::new(list)
}
