//! X7, T12: every route by every kind of caller, as a table that is reviewed when it changes.
//!
//! `+` is let in (whatever the handler then makes of the request), `401` and `403` are refused. After a change that is meant,
//! run the test with `INSTA_UPDATE=always` and read the difference.

use std::fmt::Write;

use axum::body::Body;
use serde_json::json;
use testkit::Database;

use crate::api::{Api, json_request, request};

const CALLERS: &[(&str, &str)] = &[
    ("admin", r#"{"role": "admin"}"#),
    ("operator", r#"{"role": "operator"}"#),
    ("producer", r#"{"role": "producer"}"#),
    ("worker", r#"{"role": "worker"}"#),
    ("viewer", r#"{"role": "viewer"}"#),
    ("viewer +triggers", r#"{"role": "viewer", "rights": ["manage_triggers"]}"#),
    ("viewer +letters", r#"{"role": "viewer", "rights": ["manage_dead_letters"]}"#),
    (
        "worker +reading",
        r#"{"role": "worker", "rights": ["read_payloads", "read_results", "read_artifacts", "read_logs"]}"#,
    ),
    ("admin of q", r#"{"role": "admin", "queues": ["q"]}"#),
    ("admin of system", r#"{"role": "admin", "tenant": "system"}"#),
];

#[tokio::test]
async fn x7_every_route_by_every_caller() {
    let api = Api::new(Database::sqlite().await).await;
    let document = server::document();
    let document: serde_json::Value = serde_json::from_str(&document.to_json().unwrap()).unwrap();
    let mut callers = vec![("nobody", None), ("stranger", Some(format!("windlass_{}", "0".repeat(49))))];
    for (name, request) in CALLERS {
        let mut request: serde_json::Value = serde_json::from_str(request).unwrap();
        request["name"] = json!(name);
        callers.push((name, Some(api.token(request).await)));
    }
    let mut table = String::new();
    for (number, (name, _)) in callers.iter().enumerate() {
        writeln!(table, "{number:>3} = {name}").unwrap();
    }
    table.push('\n');
    for (path, item) in document["paths"].as_object().unwrap() {
        let concrete = path.replace("{id}", "00000000-0000-7000-8000-000000000000").replace("{name}", "q");
        let concrete = concrete.split('/').map(|part| if part.starts_with('{') { "x" } else { part });
        let concrete = concrete.collect::<Vec<_>>().join("/");
        for method in item.as_object().unwrap().keys() {
            let method = method.to_uppercase();
            let mut line = format!("{method:<7}{path:<42}");
            for (_, token) in &callers {
                let mut asked = match method.as_str() {
                    "GET" => request("GET", &concrete).body(Body::empty()).unwrap(),
                    // A body that no handler takes: who is let in hears of that, and nothing changes.
                    method => json_request(method, &concrete, &json!({"no such field": 1})),
                };
                if let Some(token) = token {
                    asked.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
                }
                match api.ask(asked).await.status.as_u16() {
                    status @ (401 | 403) => write!(line, " {status}"),
                    _ => write!(line, "   +"),
                }
                .unwrap();
            }
            writeln!(table, "{line}").unwrap();
        }
    }
    insta::assert_snapshot!(table);
}
