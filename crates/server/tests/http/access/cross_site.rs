//! Requests that pages of other origins send to a server without tokens.

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};
use testkit::Database;

use crate::api::{Api, request};

const OTHER_PORT: &[(&str, &str)] = &[("origin", "http://localhost:9999")];
const NO_ORIGIN: &[(&str, &str)] = &[("sec-fetch-site", "same-site")];
const OWN_PAGE: &[(&str, &str)] = &[("origin", "http://localhost"), ("sec-fetch-site", "same-origin")];
const PROGRAM: &[(&str, &str)] = &[];

/// A request as a browser sends it without a preflight: no JSON content type.
fn simple(method: &str, path: &str, headers: &[(&'static str, &str)]) -> Request<Body> {
    let mut request = request(method, path).body(Body::empty()).unwrap();
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    request
}

/// Requirement X7.
#[tokio::test]
async fn a_page_on_another_loopback_port_changes_nothing_without_tokens() {
    let api = Api::new(Database::sqlite().await).await;
    let job = api.job("q").await;
    let pause = "/api/v1/queues/q/pause".to_owned();
    let cancel = format!("/api/v1/jobs/{job}/cancel");
    let upload = format!("/api/v1/jobs/{job}/artifacts/a.txt");
    let changes = [("POST", &pause), ("POST", &cancel), ("PUT", &upload)];
    for (method, path) in changes {
        for headers in [OTHER_PORT, NO_ORIGIN] {
            let refused = api.send(simple(method, path, headers)).await;
            refused.problem(403, "host_not_allowed", None);
            let detail = refused.json()["detail"].as_str().unwrap().to_owned();
            assert!(detail.contains("--public-url"), "{path}: {detail}");
        }
    }
    let queue: Value = api.get("/api/v1/queues/q").await.json();
    assert_eq!((&queue["paused"], &queue["counts"]["canceled"]), (&json!(false), &json!(0)));
    assert_eq!(api.get(&format!("/api/v1/jobs/{job}/artifacts")).await.json()["items"], json!([]));
    let read = api.send(simple("GET", "/api/v1/jobs", OTHER_PORT)).await;
    assert_eq!(read.status, 200, "a GET changes nothing, and the page cannot read its response");

    for headers in [OWN_PAGE, PROGRAM] {
        for (method, path) in changes {
            let accepted = api.send(simple(method, path, headers)).await;
            assert!(accepted.status.is_success(), "{path}: {:?}", accepted.body);
        }
    }
}

/// Requirement X7.
#[tokio::test]
async fn a_page_of_another_origin_calls_no_hook_and_reports_no_facts() {
    let api = Api::new(Database::sqlite().await).await;
    let trigger = json!({"name": "t", "source": "http", "target": {"job": {"queue": "q", "kind": "k"}}});
    let hook = api.post("/api/v1/triggers", trigger).await.json()["hook"].as_str().unwrap().to_owned();
    for (method, path) in [("POST", hook.as_str()), ("PUT", "/api/v1/subjects/s/facts")] {
        api.send(simple(method, path, OTHER_PORT)).await.problem(403, "host_not_allowed", None);
    }
    assert_eq!(api.job_count().await, 0);
}
