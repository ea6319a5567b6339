//! Every route with every kind of caller, as a reviewed snapshot.
//!
//! `+` means that the caller is authorized, whatever the handler returns; `401` and `403` are rejections. After an
//! intended change run the test with `INSTA_UPDATE=always` and review the difference.

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

/// Requirement X7.
#[tokio::test]
async fn every_route_has_the_expected_status_for_every_caller() {
    let api = Api::new(Database::sqlite().await).await;
    let document = server::document();
    let document: serde_json::Value = serde_json::from_str(&document.to_json().unwrap()).unwrap();
    let mut callers = vec![("no token", None), ("unknown token", Some(format!("windlass_{}", "0".repeat(49))))];
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
                let mut sent = match method.as_str() {
                    "GET" => request("GET", &concrete).body(Body::empty()).unwrap(),
                    // A body that every handler rejects, so that an authorized request changes nothing.
                    method => json_request(method, &concrete, &json!({"no such field": 1})),
                };
                if let Some(token) = token {
                    sent.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
                }
                match api.send(sent).await.status.as_u16() {
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
