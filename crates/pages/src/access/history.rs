//! The history page: every recorded event, newest first, optionally of one subject. Also renders timelines for other
//! pages.

use std::fmt::Write;

use askama::Template;
use jiff::Timestamp;
use serde_json::{Map, Value};
use wire::{Page, TimelineItem};

use crate::frame::{DashboardPage, Frame};
use crate::html::{self, Markup};

/// Maximum bytes shown of one value, and of all facts of an event together.
const SHOWN_BYTES: usize = 400;

#[derive(Debug, Template)]
#[template(path = "history.html")]
pub struct History {
    pub frame: Frame,
    /// The `subject` parameter of the URL.
    pub subject: String,
    pub page: Page<TimelineItem>,
}

impl History {
    fn is_filtered(&self) -> bool {
        !self.subject.is_empty()
    }

    fn next(&self, cursor: &str) -> String {
        let pairs = [("subject", self.subject.as_str()), ("cursor", cursor)];
        let pairs = pairs.iter().filter(|(_, value)| !value.is_empty());
        let pairs: Vec<String> = pairs.map(|(name, value)| format!("{name}={}", html::segment(value))).collect();
        format!("history?{}", pairs.join("&"))
    }
}

/// Renders items as an ordered list, newest first.
pub(crate) fn timeline(items: &[TimelineItem], frame: &Frame) -> Markup {
    if items.is_empty() {
        return Markup::new("<p class=\"muted\">No events yet.</p>".into());
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
        // A runtime is a subject too; link it once, to the runtime's page.
        match (&item.runtime, &item.subject) {
            (Some(runtime), _) => drop(write!(list, " {}", frame.runtime(runtime))),
            (None, Some(subject)) => drop(write!(list, " {}", frame.subject(subject))),
            (None, None) => {}
        }
        let labels = [("", &item.process), ("by ", &item.actor)];
        for (prefix, text) in labels.iter().filter_map(|(prefix, text)| text.as_ref().map(|text| (prefix, text))) {
            let _ = write!(list, " <span class=\"muted\">{prefix}{}</span>", html::escape(text));
        }
        if let Some(job) = &item.job_id {
            let _ = write!(list, " <a class=\"id\" href=\"{}jobs/{job}\">{}</a>", frame.root, html::short(job));
        }
        if let Some(cause) = &item.cause {
            let tone = if is_failure(item) { "cause" } else { "note-text" };
            let _ = write!(list, "<div class=\"{tone}\">{}</div>", html::message(cause));
        }
        list.push_str(&details(item, frame));
        list.push_str("</li>");
    }
    list.push_str("</ol>");
    Markup::new(list)
}

/// True if the item's cause is an error. Every cause of a runtime's event is, except `healthy` and `replay_no_op`.
fn is_failure(item: &TimelineItem) -> bool {
    let of_runtime = item.runtime.is_some() && !matches!(item.cause.as_deref(), Some("healthy" | "replay_no_op"));
    of_runtime || matches!(item.event.as_str(), "failed" | "expired" | "backed_off")
}

/// Renders the members of `detail`, each with its name. Members that are null are omitted.
fn details(item: &TimelineItem, frame: &Frame) -> String {
    let Some(detail) = &item.detail else { return String::new() };
    let mut members = match serde_json::from_str(detail.get()) {
        Ok(Value::Object(members)) => members,
        Ok(Value::Null) => return String::new(),
        _ => {
            return format!(
                "<div><code>{}</code></div>",
                html::escape(&html::cut(detail.get().to_owned(), SHOWN_BYTES))
            );
        }
    };
    let facts = match members.remove("facts") {
        Some(Value::Object(facts)) => changed_facts(&facts),
        _ => Vec::new(),
    };
    // A trigger's id is used only in the link's address.
    let trigger = members.get("trigger").and(members.get("id")).and_then(Value::as_str);
    let trigger = trigger.and_then(|id| id.parse::<uuid::Uuid>().ok());
    if trigger.is_some() {
        members.remove("id");
    }
    let trigger = trigger.filter(|_| item.event != "trigger_deleted");
    let shown_members = members.iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| {
        let text = html::cut(plain(value), SHOWN_BYTES);
        let shown = match (name.as_str(), trigger, text.parse::<Timestamp>()) {
            ("queue", ..) => frame.link(DashboardPage::Jobs, &format!("jobs?queue={}", html::segment(&text)), &text),
            ("trigger", Some(id), _) => frame.trigger(&id, &text),
            (_, _, Ok(at)) => html::time(&at),
            _ => Markup::new(html::escape(&text)),
        };
        pair(&html::escape(name).replace('_', " "), &shown)
    });
    pairs(&shown_members.collect::<Vec<String>>()) + &pairs(&facts)
}

/// Renders changed facts up to `SHOWN_BYTES`. Fact names are chosen by users, so no name gets special treatment.
fn changed_facts(facts: &Map<String, Value>) -> Vec<String> {
    let mut rendered = Vec::new();
    let mut bytes = 0;
    for (name, value) in facts {
        let text = html::cut(plain(value), SHOWN_BYTES);
        bytes += name.len() + text.len();
        // The first fact is shown whatever its length.
        if bytes > SHOWN_BYTES && !rendered.is_empty() {
            break;
        }
        let shown = if value.is_null() { "<em>removed</em>".into() } else { html::escape(&text) };
        rendered.push(pair(&html::escape(name), &Markup::new(shown)));
    }
    let more = facts.len() - rendered.len();
    if more > 0 {
        rendered.push(format!("<span class=\"muted\">and {more} more</span>"));
    }
    rendered
}

fn pair(name: &str, shown: &Markup) -> String {
    format!("<span><span class=\"muted\">{name}</span> {shown}</span>")
}

fn pairs(rendered: &[String]) -> String {
    if rendered.is_empty() { String::new() } else { format!("<div class=\"pairs\">{}</div>", rendered.join(" ")) }
}

/// A JSON value as plain text: strings without quotes, arrays as comma-separated lists.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<String>>().join(", "),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Can;

    fn frame() -> Frame {
        Frame {
            title: "History".into(),
            root: "./".into(),
            current: None,
            trail: Vec::new(),
            pages: DashboardPage::ALL.to_vec(),
            principal: "local".into(),
            signed_in: false,
            can: Can::default(),
            dead_letters: None,
            now: Timestamp::UNIX_EPOCH,
            release: "0",
        }
    }

    fn render(item: &str) -> String {
        let item = format!(r#"{{"at":"2026-01-01T00:00:00Z",{item}}}"#);
        timeline(&[serde_json::from_str(&item).expect("an item")], &frame()).to_string()
    }

    #[test]
    fn only_failures_are_marked_as_causes() {
        let bad = [
            r#""event":"failed","cause":"BOOM""#,
            r#""event":"health_changed","runtime":"llama","subject":"runtime/llama","cause":"exited""#,
            r#""event":"start","runtime":"llama","cause":"image_pull_failed""#,
        ];
        let calm = [
            r#""event":"health_changed","runtime":"llama","cause":"healthy""#,
            r#""event":"start","runtime":"llama","cause":"replay_no_op""#,
            r#""event":"locked_out","subject":"web-01","cause":"the disk is swapped""#,
        ];
        assert!(bad.iter().all(|item| render(item).contains("class=\"cause\"")));
        assert!(calm.iter().all(|item| render(item).contains("class=\"note-text\"")));
    }

    #[test]
    fn history_details_show_names_and_links() {
        let shown = render(r#""event":"queue_changed","detail":{"queue":"a b","per_key":null,"changed":["x","y"]}"#);
        assert!(shown.contains("<a href=\"./jobs?queue=a%20b\">a b</a>") && shown.contains("x, y"), "{shown}");
        assert!(!shown.contains("per key") && !shown.contains('{'), "{shown}");
        let shown = render(r#""event":"health_changed","runtime":"llama","subject":"runtime/llama""#);
        assert_eq!(shown.matches("llama").count(), 2, "once, in a link: {shown}");
        let shown = render(r#""event":"facts_changed","detail":{"facts":{"<b>":"<i>"}}"#);
        assert!(!shown.contains("<b>") && !shown.contains("<i>"), "{shown}");
    }

    #[test]
    fn changed_and_removed_facts_are_shown_by_name_without_links() {
        let facts = r#"{"id":"7","os":null,"queue":"q","trigger":"t"}"#;
        let shown = render(&format!(r#""event":"facts_changed","detail":{{"facts":{facts},"left_out":2}}"#));
        for fact in ["id</span> 7", "os</span> <em>removed</em>", "queue</span> q", "left out</span> 2"] {
            assert!(shown.contains(fact), "{fact} in {shown}");
        }
        assert!(!shown.contains("<a "), "{shown}");
        let long = "x".repeat(SHOWN_BYTES / 2);
        let facts = format!(r#"{{"a":"{long}","b":"{long}","c":"{long}"}}"#);
        let shown = render(&format!(r#""event":"facts_changed","detail":{{"facts":{facts}}}"#));
        assert!(shown.contains("and 2 more") && shown.matches(&long).count() == 1, "{shown}");
    }

    #[test]
    fn a_trigger_is_linked_unless_it_was_deleted() {
        let id = "01890a5d-ac96-774b-bcce-b302099a8057";
        let of = |event: &str| render(&format!(r#""event":"{event}","detail":{{"trigger":"t","id":"{id}"}}"#));
        assert!(of("trigger_changed").contains(&format!("<a href=\"./triggers/{id}\">t</a>")));
        let shown = of("trigger_deleted");
        assert!(shown.contains("trigger</span> t<") && !shown.contains(id), "{shown}");
    }
}
