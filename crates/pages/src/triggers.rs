//! Triggers and schedules: when this happens, start that; what they did and when they fire next.

use askama::Template;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use serde_json::Value;
use wire::{Page, TriggerRequest, TriggerRunView, TriggerView};

use crate::frame::Frame;
use crate::html::{self, Markup};

#[derive(Debug, Template)]
#[template(path = "triggers.html")]
pub struct Triggers {
    pub frame: Frame,
    pub page: Page<TriggerView>,
}

impl Triggers {
    fn sources(&self) -> [&'static str; 9] {
        ["cron", "kv", "pubsub", "queue", "job", "http", "email", "runtime", "dead_letter"]
    }
}

#[derive(Debug, Template)]
#[template(path = "trigger.html")]
pub struct TriggerPage {
    pub frame: Frame,
    pub trigger: TriggerView,
    /// None for those who may not read logs.
    pub runs: Option<Page<TriggerRunView>>,
}

/// The whole trigger as a request; a secret that is shown as kept is kept, and so is every digit.
fn request(trigger: &TriggerView) -> TriggerRequest {
    TriggerRequest {
        name: trigger.name.clone(),
        source: trigger.source.clone(),
        filter: Some(trigger.filter.clone()),
        target: trigger.target.clone(),
        mode: Some(trigger.mode.clone()),
        retry: Some(trigger.retry),
        enabled: Some(trigger.enabled),
    }
}

/// The request that changes nothing, for a form that changes some of it.
fn unchanged(trigger: &TriggerView) -> String {
    serde_json::to_string(&request(trigger)).expect("plain data has a JSON form")
}

/// The request that turns it on or off.
fn turned(trigger: &TriggerView) -> String {
    let request = TriggerRequest { enabled: Some(!trigger.enabled), ..request(trigger) };
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
        "email" => text("to"),
        _ => {
            let members = filter.as_object().into_iter().flatten();
            let named = members.filter_map(|(name, value)| Some((name, value.as_str()?)));
            let named = named.filter(|(name, _)| !matches!(name.as_str(), "secret" | "when"));
            named.map(|(name, value)| format!("{name} {value}")).collect::<Vec<String>>().join(", ")
        }
    }
}

/// When it fires next, by its own zone's clock on hover.
fn fires(trigger: &TriggerView) -> Vec<Markup> {
    let filter: Value = serde_json::from_str(trigger.filter.get()).unwrap_or_default();
    let zone = filter["timezone"].as_str().and_then(|zone| TimeZoneDatabase::bundled().get(zone).ok());
    let zone = zone.unwrap_or(TimeZone::UTC);
    trigger.next_fires.iter().map(|at| html::time_by(at, &zone)).collect()
}

/// The page that shows what it starts: the very thing where its name is known beforehand.
fn started(trigger: &TriggerView) -> String {
    let target: Value = serde_json::from_str(trigger.target.get()).unwrap_or_default();
    let known = |value: &Value| value.as_str().filter(|text| !text.contains("{{")).map(html::segment);
    match target.as_object().and_then(|members| members.iter().next()) {
        Some((kind, job)) if kind == "job" => match (known(&job["queue"]), known(&job["kind"])) {
            (Some(queue), Some(kind)) => format!("jobs?queue={queue}&kind={kind}"),
            (Some(queue), None) => format!("jobs?queue={queue}"),
            _ => "jobs".into(),
        },
        Some((kind, _)) if kind == "http" => "deliveries".into(),
        Some((kind, runtime)) if kind == "runtime" => {
            known(&runtime["name"]).map_or_else(|| "runtimes".into(), |name| format!("runtimes/{name}"))
        }
        _ => format!("triggers/{}", trigger.id),
    }
}

fn took(run: &TriggerRunView) -> String {
    run.duration_ms.map_or_else(|| "–".into(), |ms| format!("{ms} ms"))
}

fn log(run: &TriggerRunView) -> String {
    run.log.join("\n")
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

    fn trigger(source: &str, filter: &str, target: &str) -> TriggerView {
        let shown = format!(
            r#"{{"id":"00000000-0000-0000-0000-000000000001","name":"t","source":"{source}","filter":{filter},
            "target":{target},"mode":"async","retry":{{"max_attempts":3}},"enabled":true,"principal":"local",
            "created_at":"2026-01-01T00:00:00Z","updated_at":"2026-01-01T00:00:00Z","fired":0,"failed":0,
            "loops_stopped":0,"missed":0,"last_missed_at":null,"last_fired_at":null,"last_error":null,
            "next_fires":["2026-01-01T02:00:00Z"]}}"#
        );
        serde_json::from_str(&shown).expect("a trigger")
    }

    #[test]
    fn a_trigger_that_is_turned_off_or_edited_keeps_every_digit() {
        let target = r#"{"job":{"queue":"q","kind":"k","payload":{"n":123456789012345678901234567890, "x":1.10}}}"#;
        let shown = trigger("kv", r#"{"collection":"c"}"#, target);
        let expected = |enabled: bool| {
            format!(
                r#"{{"name":"t","source":"kv","filter":{{"collection":"c"}},"target":{target},"mode":"async","retry":{{"max_attempts":3}},"enabled":{enabled}}}"#
            )
        };
        assert_eq!([turned(&shown), unchanged(&shown)], [expected(false), expected(true)]);
    }

    #[test]
    fn every_source_says_what_it_listens_for() {
        let told = |source: &str, filter: &str| listens(&trigger(source, filter, "{}"));
        assert_eq!(told("email", r#"{"to":"orders@example.com"}"#), "orders@example.com");
        assert_eq!(told("runtime", r#"{"health":"exited","name":"llama"}"#), "health exited, name llama");
        assert_eq!(told("dead_letter", r#"{"source":"cron","when":"x"}"#), "source cron");
        assert_eq!(told("http", r#"{"secret":"kept"}"#), "");
    }

    #[test]
    fn what_was_started_is_found_where_its_name_is_known() {
        let led = |target: &str| started(&trigger("kv", "{}", target));
        assert_eq!(led(r#"{"job":{"queue":"a b","kind":"k"}}"#), "jobs?queue=a%20b&kind=k");
        assert_eq!(led(r#"{"job":{"queue":"{{ event.key }}","kind":"k"}}"#), "jobs");
        assert_eq!(led(r#"{"runtime":{"name":"llama","operation":"start"}}"#), "runtimes/llama");
        assert_eq!(led(r#"{"script":"1"}"#), "triggers/00000000-0000-0000-0000-000000000001");
    }

    #[test]
    fn a_schedule_tells_the_time_of_its_own_zone_on_hover() {
        let shown = fires(&trigger("cron", r#"{"schedule":"0 3 * * *","timezone":"Europe/Berlin"}"#, "{}"));
        assert!(shown[0].to_string().contains("title=\"2026-01-01 03:00:00 Europe/Berlin\""), "{}", shown[0]);
    }
}
