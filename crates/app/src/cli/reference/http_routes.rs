//! The page docs/reference/http-routes.md: every route, from the OpenAPI document.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::Value;

use super::markdown;

/// Methods in the order in which the page lists them.
const METHODS: [&str; 4] = ["get", "post", "put", "delete"];

pub(super) fn generate() -> String {
    let document = server::document().to_json().expect("the document has a JSON form");
    let document: Value = serde_json::from_str(&document).expect("the document is JSON");
    let mut groups: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let paths: BTreeMap<&String, &Value> = document["paths"].as_object().into_iter().flatten().collect();
    for (path, item) in paths {
        for method in METHODS {
            let operation = &item[method];
            if operation.is_object() {
                let tag = operation["tags"][0].as_str().unwrap_or("other");
                groups.entry(tag).or_default().push(row(method, path, operation));
            }
        }
    }
    let mut text = String::new();
    for (tag, rows) in groups {
        let heading = match tag {
            "pages" => "Dashboard and documentation".to_owned(),
            "health" => "Health, metrics and OpenAPI".to_owned(),
            "openai" => "OpenAI-compatible API".to_owned(),
            "kv" => "Key-value collections".to_owned(),
            "ttfs" => "TTFS".to_owned(),
            tag => capitalized(&tag.replace(['-', '_'], " ")),
        };
        let _ = write!(text, "## {heading}\n\n| route | right | purpose | parameters | request | response |\n");
        let _ = writeln!(text, "|---|---|---|---|---|---|\n{}\n", rows.join("\n"));
    }
    text
}

fn row(method: &str, path: &str, operation: &Value) -> String {
    let summary = markdown(operation["summary"].as_str().unwrap_or_default());
    let parameters: Vec<String> = items(&operation["parameters"])
        .filter(|parameter| parameter["in"] != "path")
        .map(|parameter| format!("`{}`", parameter["name"].as_str().unwrap_or_default()))
        .collect();
    let request = operation["requestBody"].as_object().map(|_| content(&operation["requestBody"])).unwrap_or_default();
    let responses: BTreeMap<&String, &Value> = operation["responses"].as_object().into_iter().flatten().collect();
    let responses: Vec<String> = responses
        .into_iter()
        .filter(|(status, _)| *status != "default")
        .map(|(status, response)| format!("{status} {}", content(response)).trim_end().to_owned())
        .collect();
    format!(
        "| `{} {path}` | {} | {summary} | {} | {request} | {} |",
        method.to_uppercase(),
        right(operation),
        parameters.join(", "),
        responses.join(", ")
    )
}

fn right(operation: &Value) -> String {
    let rights: Vec<String> =
        items(&operation["x-rights"]).filter_map(Value::as_str).map(|right| format!("`{right}`")).collect();
    match (rights.is_empty(), operation["security"].is_null()) {
        (false, _) => rights.join(" or "),
        (true, false) => "any token".into(),
        (true, true) => "none".into(),
    }
}

/// The names of the types of a body.
fn content(body: &Value) -> String {
    let types: BTreeMap<&String, &Value> = body["content"].as_object().into_iter().flatten().collect();
    let mut names: Vec<String> = Vec::new();
    for (media_type, content) in types {
        let name = match media_type.as_str() {
            "application/json" => schema(&content["schema"]),
            other => format!("`{other}`"),
        };
        if !name.is_empty() && !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(" or ")
}

fn schema(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|name| name.rsplit('/').next()) {
        return format!("`{name}`");
    }
    for members in ["oneOf", "anyOf", "allOf"] {
        let names: Vec<String> =
            items(&schema[members]).filter(|member| member["type"] != "null").map(self::schema).collect();
        if !names.is_empty() {
            return names.join(" or ");
        }
    }
    match schema["type"].as_str() {
        Some("array") => format!("list of {}", self::schema(&schema["items"])),
        Some("object") | None => "object".into(),
        Some(other) => other.to_owned(),
    }
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}
