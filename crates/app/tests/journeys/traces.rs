//! Traces over OTLP, as a collector receives them.

use std::io::{Read, Write};
use std::net::TcpListener;

use serde_json::{Value, json};
use testkit::receiver::{Behavior, Receiver};

use crate::support::{Fixture, Serve, http, on_both};

/// Accepts exports until they contain all of these texts. Returns the exports.
fn collect_until(collector: &TcpListener, texts: &[&str]) -> Vec<String> {
    let mut exports = Vec::new();
    while !texts.iter().all(|text| exports.iter().any(|export: &String| export.contains(text))) {
        exports.push(collect_one(collector));
    }
    exports
}

/// Accepts one export, responds to it, and returns all of it as text.
fn collect_one(collector: &TcpListener) -> String {
    let (mut connection, _) = collector.accept().expect("the server sends its traces");
    let mut received = Vec::new();
    let mut part = [0; 4096];
    loop {
        // The length is in bytes, so the body is not decoded before it is complete.
        if let Some(head) = received.windows(4).position(|window| window == b"\r\n\r\n") {
            let text = String::from_utf8_lossy(&received[..head]).to_ascii_lowercase();
            let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
            if received.len() >= head + 4 + length.unwrap_or(0) {
                // A server whose export timed out has closed the connection, but has sent everything.
                let _sent = connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
                break;
            }
        }
        match connection.read(&mut part).expect("the server sends its traces") {
            0 => break,
            bytes => received.extend_from_slice(&part[..bytes]),
        }
    }
    String::from_utf8_lossy(&received).into_owned()
}

/// Requirement X11.
#[tokio::test(flavor = "multi_thread")]
async fn a_trace_collector_receives_a_span_for_each_request() {
    let collector = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let endpoint = format!("http://{}", collector.local_addr().expect("the listener has an address"));
    let fixture = Fixture::sqlite();
    let mut server = Serve::on(&fixture).env("WINDLASS_OTLP_ENDPOINT", endpoint).start().await;
    let response = http().get(format!("{}/api/v1/queues", server.url)).send().await.expect("the server responds");
    assert_eq!(response.status(), 200);
    let export = tokio::task::spawn_blocking(move || collect_one(&collector));
    // The server exports pending spans when it stops.
    assert_eq!(server.program.terminate().await, Some(0));
    let export = export.await.expect("the collector does not panic");
    assert!(export.starts_with("POST /v1/traces"), "{export}");
    assert!(export.contains("GET /api/v1/queues"), "{export}");
}

/// Guarantee X11: one trace shows the request, the wait, the attempt, its steps and the webhook.
#[tokio::test(flavor = "multi_thread")]
async fn one_trace_shows_a_job_from_the_request_to_the_webhook() {
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    on_both(async |fixture| {
        let collector = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let endpoint = format!("http://{}", collector.local_addr().expect("the listener has an address"));
        let receiver = Receiver::start(Behavior::Respond(200)).await;
        let server = Serve::on(&fixture).env("WINDLASS_OTLP_ENDPOINT", endpoint);
        let mut server = server.env("WINDLASS_ALLOW_PRIVATE", "true").start().await;
        let post = async |path: &str, body: Value| {
            let sent = http().post(format!("{}/api/v1{path}", server.url)).json(&body);
            let sent = sent.header("traceparent", format!("00-{TRACE}-00f067aa0ba902b7-01"));
            let response = sent.send().await.expect("the server responds");
            assert!(response.status().is_success(), "{path} {}", response.status());
            response.json::<Value>().await.expect("JSON")
        };
        let job = json!({"queue": "q", "kind": "charge", "webhook": {"url": receiver.url()}});
        post("/jobs", job).await;
        let worker = post("/workers", json!({"name": "w", "queues": ["q"], "lease_s": 60})).await;
        let worker = worker["id"].as_str().expect("an id").to_owned();
        let claim = post(&format!("/workers/{worker}/claim"), json!({"max": 1, "wait_s": 20})).await;
        let claimed = &claim["jobs"][0];
        let attempt = claimed["traceparent"].as_str().expect("the job has a trace");
        assert!(attempt.contains(TRACE) && !attempt.contains("00f067aa0ba902b7"), "the worker gets the attempt's span");
        let (id, epoch) = (&claimed["id"], &claimed["epoch"]);
        let ops = json!([{"op": "step", "key": "book", "result": 1, "duration_ms": 5}]);
        let writes = json!({"writes": [{"job_id": id, "epoch": epoch, "ops": ops}]});
        post(&format!("/workers/{worker}/journal"), writes).await;
        let outcomes = json!({"outcomes": [{"job_id": id, "epoch": epoch, "outcome": "finish"}]});
        post(&format!("/workers/{worker}/settle"), outcomes).await;
        receiver.wait_for(2).await;
        let seen = receiver.requests();
        assert!(seen.iter().all(|seen| seen.header("traceparent").is_some_and(|header| header.contains(TRACE))));
        let names = ["POST /api/v1/jobs", "queue q", "attempt charge", "step book", "webhook POST"];
        let export = tokio::task::spawn_blocking(move || collect_until(&collector, &names));
        // The server exports pending spans when it stops.
        assert_eq!(server.program.terminate().await, Some(0));
        let exports = export.await.expect("the collector does not panic");
        // Every span of the export is in the trace: all requests of this test are.
        let mut spans: Vec<Value> = Vec::new();
        for export in &exports {
            let (_, body) = export.split_once("\r\n\r\n").expect("a body");
            let body: Value = serde_json::from_str(body).expect("JSON");
            let resources = body["resourceSpans"].as_array().expect("resources").clone();
            for scope in resources.iter().flat_map(|resource| resource["scopeSpans"].as_array().expect("scopes")) {
                spans.extend(scope["spans"].as_array().expect("spans").iter().cloned());
            }
        }
        let of = |name: &str| {
            let found = spans.iter().find(|span| span["name"] == name);
            found.unwrap_or_else(|| panic!("no span {name}: {spans:?}"))
        };
        for name in names {
            assert_eq!(of(name)["traceId"], TRACE, "{name}");
        }
        assert_eq!(of("step book")["parentSpanId"], of("attempt charge")["spanId"]);
        assert_eq!(of("attempt charge")["parentSpanId"], "00f067aa0ba902b7");
    })
    .await;
}
