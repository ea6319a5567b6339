//! Compares the settings of an object in a file with those on the server.

use std::fmt;

use serde_json::{Map, Value, json};

use super::section::Section;
use crate::cli::queue::job::default_retry;

/// Placeholders with which the server replaces secrets. Sent back, they retain the stored secret.
const PLACEHOLDERS: [&str; 2] = ["(kept)", "********"];

/// A member that differs.
pub(super) struct Difference {
    path: String,
    from: Value,
    to: Value,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |value: &Value| if value.is_null() { "default".to_owned() } else { value.to_string() };
        write!(f, "{}: {} → {}", self.path, text(&self.from), text(&self.to))
    }
}

pub(super) fn is_unchanged(differences: &[Difference]) -> bool {
    differences.is_empty()
}

/// Members that differ. A member that the file does not have must have its default on the server.
pub(super) fn differences(section: Section, name: &str, current: &Value, to: &Value) -> Vec<Difference> {
    let (current, to) = (complete(section, name, current), complete(section, name, to));
    let mut found = Vec::new();
    let names = current.keys().chain(to.keys().filter(|name| !current.contains_key(*name)));
    for name in names {
        // The server decides the members of a trigger's policy that the file leaves out.
        let is_server_default = section == Section::Triggers && name == "retry" && !to.contains_key(name);
        if !is_server_default {
            compare(name, current.get(name).unwrap_or(&Value::Null), to.get(name).unwrap_or(&Value::Null), &mut found);
        }
    }
    found
}

/// Compares what the file says. The server may add members to nested objects, for example the address of a port.
fn compare(path: &str, from: &Value, to: &Value, found: &mut Vec<Difference>) {
    let differs = match (from, to) {
        (Value::Object(from), Value::Object(to)) => {
            for (name, to) in to {
                compare(&format!("{path}.{name}"), from.get(name).unwrap_or(&Value::Null), to, found);
            }
            for name in from.keys().filter(|name| !to.contains_key(*name) && is_free_form(path)) {
                compare(&format!("{path}.{name}"), &from[name], &Value::Null, found);
            }
            false
        }
        (Value::Array(from), Value::Array(to)) if from.len() == to.len() => {
            for (place, (from, to)) in from.iter().zip(to).enumerate() {
                compare(&format!("{path}[{place}]"), from, to, found);
            }
            false
        }
        // 1 and 1.0 are the same number.
        (Value::Number(from), Value::Number(to)) => from.as_f64() != to.as_f64(),
        (Value::String(from), _) if PLACEHOLDERS.contains(&from.as_str()) => !to.is_string(),
        (from, to) => from != to,
    };
    if differs {
        found.push(Difference { path: path.to_owned(), from: from.clone(), to: to.clone() });
    }
}

/// True below members with JSON of the user, where a missing member is a difference.
fn is_free_form(path: &str) -> bool {
    let member = path.split(['.', '[']).next().unwrap_or_default();
    matches!(member, "filter" | "target" | "payload" | "selector" | "env" | "placement" | "kinds")
}

/// The settings with the defaults of missing members, and without members that have no value.
fn complete(section: Section, name: &str, settings: &Value) -> Map<String, Value> {
    let mut settings = settings.as_object().cloned().unwrap_or_default();
    let mut default = |member: &str, value: Value| {
        if settings.get(member).is_none_or(Value::is_null) {
            settings.insert(member.to_owned(), value);
        }
    };
    match section {
        Section::Queues => {
            if let Some(retry) = settings.get_mut("retry") {
                fill_retry(retry);
            }
            for kind in settings.get_mut("kinds").and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut) {
                if let Some(retry) = kind.get_mut("retry") {
                    fill_retry(retry);
                }
            }
            // The server does not return secrets.
            if let Some(webhook) = settings.get_mut("webhook").and_then(Value::as_object_mut) {
                webhook.retain(|member, _| member == "url");
            }
        }
        Section::Processes => {
            default("every_s", json!(domain::limits::PROCESS_EVERY_DEFAULT_S));
            if let Some(backoff) = settings.get_mut("backoff") {
                fill_retry(backoff);
            }
        }
        Section::Triggers => {
            default("mode", json!("async"));
            default("enabled", json!(true));
            default("filter", json!({}));
            default("handles", json!(false));
        }
        Section::Pools => {
            default("queue", json!(name));
            let handler = json!({"path": "/", "timeout_s": 300, "at_once": 1});
            default("handler", handler.clone());
            let Some(given) = settings.get_mut("handler").and_then(Value::as_object_mut) else { return settings };
            for (member, value) in handler.as_object().into_iter().flatten() {
                given.entry(member).or_insert(value.clone());
            }
        }
        Section::Runtimes => {
            default("movable", json!(false));
            default("network", json!("bridge"));
        }
        Section::Tokens => {
            for list in ["queues", "rights"] {
                if let Some(list) = settings.get_mut(list).and_then(Value::as_array_mut) {
                    list.sort_by_key(Value::to_string);
                }
            }
        }
    }
    settings.retain(|_, value| !is_empty(value));
    if section == Section::Triggers {
        settings.entry("filter").or_insert(json!({}));
    }
    settings
}

/// True for values that mean the same as a missing member.
pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.values().all(is_empty),
        _ => false,
    }
}

/// Members of a policy that are missing have the values of the default policy of queues.
pub(super) fn fill_retry(retry: &mut Value) {
    let Ok(Value::Object(defaults)) = serde_json::to_value(default_retry()) else { return };
    if let Some(retry) = retry.as_object_mut() {
        for (member, value) in defaults {
            retry.entry(member).or_insert(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(section: Section, current: Value, to: Value, expected: &[&str]) {
        let found: Vec<String> = differences(section, "x", &current, &to).iter().map(ToString::to_string).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn only_members_with_another_meaning_differ() {
        let retry = json!({"initial_s": 9, "maximum_s": 3600, "exponent": 2.0, "jitter": 0.1});
        check(Section::Queues, json!({"retry": retry}), json!({"retry": {"initial_s": 9}}), &[]);
        check(Section::Queues, json!({"concurrency": 2}), json!({"concurrency": 3}), &["concurrency: 2 → 3"]);
        check(Section::Queues, json!({"concurrency": 2}), json!({}), &["concurrency: 2 → default"]);
        check(Section::Queues, json!({"rate_per_s": 1.0}), json!({"rate_per_s": 1}), &[]);
        let secret = json!({"webhook": {"url": "https://a", "secrets": ["x"]}});
        check(Section::Queues, json!({"webhook": {"url": "https://a"}}), secret, &[]);
        check(Section::Processes, json!({"every_s": 60, "excludes": []}), json!({}), &[]);
        let trigger =
            json!({"mode": "async", "enabled": true, "retry": {"initial_s": 1}, "filter": {"secret": "(kept)"}});
        check(Section::Triggers, trigger.clone(), json!({"filter": {"secret": "whsec_a"}}), &[]);
        let expected = ["filter.secret: \"(kept)\" → default", "retry.initial_s: 1 → 2"];
        check(Section::Triggers, trigger, json!({"retry": {"initial_s": 2}}), &expected);
        check(
            Section::Runtimes,
            json!({"ports": [{"container": 80, "address": "127.0.0.1"}]}),
            json!({"ports": [{"container": 80}]}),
            &[],
        );
        check(
            Section::Pools,
            json!({"queue": "x", "handler": {"path": "/", "timeout_s": 300, "at_once": 1}}),
            json!({}),
            &[],
        );
    }
}
