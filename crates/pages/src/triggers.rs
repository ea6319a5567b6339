//! Triggers and schedules: when this happens, start that; what they did and when they fire next.

use askama::Template;
use serde_json::Value;
use wire::{Page, TriggerRequest, TriggerView};

use crate::frame::Frame;
use crate::html;

#[derive(Debug, Template)]
#[template(path = "triggers.html")]
pub struct Triggers {
    pub frame: Frame,
    pub page: Page<TriggerView>,
}

/// The whole trigger as a request that turns it on or off; a secret that is shown as kept is kept, and so is every digit.
fn turned(trigger: &TriggerView) -> String {
    let request = TriggerRequest {
        name: trigger.name.clone(),
        source: trigger.source.clone(),
        filter: Some(trigger.filter.clone()),
        target: trigger.target.clone(),
        mode: Some(trigger.mode.clone()),
        retry: Some(trigger.retry),
        enabled: Some(!trigger.enabled),
    };
    serde_json::to_string(&request).expect("plain data has a JSON form")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trigger_that_is_turned_off_keeps_every_digit() {
        let target = r#"{"job":{"queue":"q","kind":"k","payload":{"n":123456789012345678901234567890, "x":1.10}}}"#;
        let shown = format!(
            r#"{{"id":"00000000-0000-0000-0000-000000000001","name":"t","source":"kv","filter":{{"collection":"c"}},
            "target":{target},"mode":"async","retry":{{"max_attempts":3}},"enabled":true,"principal":"local",
            "created_at":"2026-01-01T00:00:00Z","updated_at":"2026-01-01T00:00:00Z","fired":0,"failed":0,
            "loops_stopped":0,"missed":0,"last_missed_at":null,"last_fired_at":null,"last_error":null}}"#
        );
        let asked = turned(&serde_json::from_str(&shown).expect("a trigger"));
        let expected = format!(
            r#"{{"name":"t","source":"kv","filter":{{"collection":"c"}},"target":{target},"mode":"async","retry":{{"max_attempts":3}},"enabled":false}}"#
        );
        assert_eq!(asked, expected);
    }
}
