//! Triggers and schedules: when this happens, start that; what they did and when they fire next.

use askama::Template;
use serde_json::{Value, json};
use wire::{Page, TriggerView};

use crate::frame::Frame;
use crate::html;

#[derive(Debug, Template)]
#[template(path = "triggers.html")]
pub struct Triggers {
    pub frame: Frame,
    pub page: Page<TriggerView>,
}

/// The whole trigger as a request that turns it on or off; a secret that is shown as kept is kept.
fn turned(trigger: &TriggerView) -> String {
    let value = |raw: &wire::RawValue| serde_json::from_str::<Value>(raw.get()).unwrap_or_default();
    json!({
        "name": trigger.name,
        "source": trigger.source,
        "filter": value(&trigger.filter),
        "target": value(&trigger.target),
        "mode": trigger.mode,
        "retry": trigger.retry,
        "enabled": !trigger.enabled,
    })
    .to_string()
}

/// What it listens for, in a line.
fn listens(trigger: &TriggerView) -> String {
    let filter: Value = serde_json::from_str(trigger.filter.get()).unwrap_or_default();
    let text = |member: &str| filter[member].as_str().unwrap_or_default().to_owned();
    match trigger.source.as_str() {
        "cron" => format!("{} {}", text("schedule"), text("timezone")).trim().to_owned(),
        "pubsub" => text("topic"),
        "kv" => text("collection"),
        "queue" | "job" => text("queue"),
        _ => String::new(),
    }
}

/// What it starts, in a line.
fn starts(trigger: &TriggerView) -> String {
    let target: Value = serde_json::from_str(trigger.target.get()).unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match target.as_object().and_then(|members| members.iter().next()) {
        Some((kind, job)) if kind == "job" => format!("job {} in {}", text(&job["kind"]), text(&job["queue"])),
        Some((kind, http)) if kind == "http" => {
            format!("{} {}", http["method"].as_str().unwrap_or("POST"), text(&http["url"]))
        }
        Some((kind, runtime)) if kind == "runtime" => {
            format!("{} of runtime {}", text(&runtime["operation"]), text(&runtime["name"]))
        }
        Some((kind, _)) => kind.clone(),
        None => String::new(),
    }
}

fn state(trigger: &TriggerView) -> &'static str {
    if trigger.enabled { "active" } else { "paused" }
}
