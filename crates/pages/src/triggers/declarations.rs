//! The triggers page and the page of one trigger.

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
    fn sources(&self) -> [&'static str; 10] {
        ["cron", "kv", "pubsub", "queue", "job", "http", "email", "runtime", "run", "dead_letter"]
    }
}

#[derive(Debug, Template)]
#[template(path = "trigger.html")]
pub struct TriggerPage {
    pub frame: Frame,
    pub trigger: TriggerView,
    /// `None` for readers who may not read logs.
    pub runs: Option<Page<TriggerRunView>>,
}

/// The trigger as a request. Secrets are sent as the placeholders of the view, which retain the stored values. Raw JSON
/// keeps every digit of numbers.
fn request(trigger: &TriggerView) -> TriggerRequest {
    TriggerRequest {
        name: trigger.name.clone(),
        source: trigger.source.clone(),
        filter: Some(trigger.filter.clone()),
        target: trigger.target.clone(),
        mode: Some(trigger.mode.clone()),
        retry: Some(trigger.retry),
        enabled: Some(trigger.enabled),
        handles: Some(trigger.handles).filter(|handles| *handles),
    }
}

/// A request that changes nothing, as the base of an edit form.
fn unchanged(trigger: &TriggerView) -> String {
    serde_json::to_string(&request(trigger)).expect("plain data has a JSON form")
}

/// The request that enables or disables the trigger.
fn toggled(trigger: &TriggerView) -> String {
    let request = TriggerRequest { enabled: Some(!trigger.enabled), ..request(trigger) };
    serde_json::to_string(&request).expect("plain data has a JSON form")
}

/// The events that start the trigger, in one line.
fn event_summary(trigger: &TriggerView) -> String {
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

/// The next due times, with the time in the schedule's own time zone as a tooltip.
fn fires(trigger: &TriggerView) -> Vec<Markup> {
    let filter: Value = serde_json::from_str(trigger.filter.get()).unwrap_or_default();
    let zone = filter["timezone"].as_str().and_then(|zone| TimeZoneDatabase::bundled().get(zone).ok());
    let zone = zone.unwrap_or(TimeZone::UTC);
    trigger.next_fires.iter().map(|at| html::time_by(at, &zone)).collect()
}

/// The page that shows what the trigger started, as specific as the target's template allows.
fn started(trigger: &TriggerView) -> String {
    let target: Value = serde_json::from_str(trigger.target.get()).unwrap_or_default();
    let fixed = |value: &Value| value.as_str().filter(|text| !text.contains("{{")).map(html::segment);
    match target.as_object().and_then(|members| members.iter().next()) {
        Some((kind, job)) if kind == "job" => match (fixed(&job["queue"]), fixed(&job["kind"])) {
            (Some(queue), Some(kind)) => format!("jobs?queue={queue}&kind={kind}"),
            (Some(queue), None) => format!("jobs?queue={queue}"),
            _ => "jobs".into(),
        },
        Some((kind, _)) if kind == "http" => "deliveries".into(),
        Some((kind, runtime)) if kind == "runtime" => {
            fixed(&runtime["name"]).map_or_else(|| "runtimes".into(), |name| format!("runtimes/{name}"))
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

/// The trigger's action, in one line.
fn target_summary(trigger: &TriggerView) -> String {
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
    fn toggling_a_trigger_keeps_its_target_text_unchanged() {
        let target = r#"{"job":{"queue":"q","kind":"k","payload":{"n":123456789012345678901234567890, "x":1.10}}}"#;
        let shown = trigger("kv", r#"{"collection":"c"}"#, target);
        let expected = |enabled: bool| {
            format!(
                r#"{{"name":"t","source":"kv","filter":{{"collection":"c"}},"target":{target},"mode":"async","retry":{{"max_attempts":3}},"enabled":{enabled}}}"#
            )
        };
        assert_eq!([toggled(&shown), unchanged(&shown)], [expected(false), expected(true)]);
    }

    #[test]
    fn the_event_summary_shows_the_filter_without_secrets() {
        let summary = |source: &str, filter: &str| event_summary(&trigger(source, filter, "{}"));
        assert_eq!(summary("email", r#"{"to":"orders@example.com"}"#), "orders@example.com");
        assert_eq!(summary("runtime", r#"{"health":"exited","name":"llama"}"#), "health exited, name llama");
        assert_eq!(summary("dead_letter", r#"{"source":"cron","when":"x"}"#), "source cron");
        assert_eq!(summary("http", r#"{"secret":"kept"}"#), "");
    }

    #[test]
    fn a_trigger_links_to_its_target_if_the_name_is_fixed() {
        let address = |target: &str| started(&trigger("kv", "{}", target));
        assert_eq!(address(r#"{"job":{"queue":"a b","kind":"k"}}"#), "jobs?queue=a%20b&kind=k");
        assert_eq!(address(r#"{"job":{"queue":"{{ event.key }}","kind":"k"}}"#), "jobs");
        assert_eq!(address(r#"{"runtime":{"name":"llama","operation":"start"}}"#), "runtimes/llama");
        assert_eq!(address(r#"{"script":"1"}"#), "triggers/00000000-0000-0000-0000-000000000001");
    }

    #[test]
    fn a_schedule_shows_the_time_in_its_own_zone_on_hover() {
        let shown = fires(&trigger("cron", r#"{"schedule":"0 3 * * *","timezone":"Europe/Berlin"}"#, "{}"));
        assert!(shown[0].to_string().contains("title=\"2026-01-01 03:00:00 Europe/Berlin\""), "{}", shown[0]);
    }
}
