//! Everything around the routes: the OpenAPI document, health, metrics, the start page, the host check and graceful
//! stop.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};
use server::{HostCheck, ServerOptions, serve};
use store::StoreError;
use store::db::tx::{Operation, Tx};
use testkit::eventually::{before_timeout, eventually, wait_until};
use testkit::{Database, on_both};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api::{Api, json_request, request};

/// Every route with its methods.
const ROUTES: &[(&str, &[&str])] = &[
    ("/", &["get"]),
    ("/jobs", &["get"]),
    ("/jobs/{id}", &["get"]),
    ("/queues", &["get"]),
    ("/queues/{name}", &["get"]),
    ("/kinds/{name}", &["get"]),
    ("/pools", &["get"]),
    ("/workers", &["get"]),
    ("/workers/{id}", &["get"]),
    ("/runs", &["get"]),
    ("/runs/{id}", &["get"]),
    ("/subjects", &["get"]),
    ("/subjects/{id}", &["get"]),
    ("/failures", &["get"]),
    ("/dead-letters", &["get"]),
    ("/triggers", &["get"]),
    ("/triggers/{id}", &["get"]),
    ("/deliveries", &["get"]),
    ("/deliveries/{id}", &["get"]),
    ("/runtimes", &["get"]),
    ("/runtimes/{name}", &["get"]),
    ("/signals", &["get"]),
    ("/history", &["get"]),
    ("/tokens", &["get"]),
    ("/system", &["get"]),
    ("/static/{name}", &["get"]),
    ("/docs", &["get"]),
    ("/docs/search", &["get"]),
    ("/docs/{*path}", &["get"]),
    ("/api/v1/abandoned", &["get"]),
    ("/api/v1/calls", &["post"]),
    ("/api/v1/deliveries", &["get"]),
    ("/api/v1/deliveries/{id}", &["get"]),
    ("/api/v1/deliveries/{id}/redeliver", &["post"]),
    ("/api/v1/dead-letters", &["get"]),
    ("/api/v1/dead-letters/count", &["get"]),
    ("/api/v1/dead-letters/replay", &["post"]),
    ("/api/v1/dead-letters/{id}", &["get"]),
    ("/api/v1/dead-letters/{id}/replay", &["post"]),
    ("/api/v1/dead-letters/{id}/resolve", &["post"]),
    ("/api/v1/events", &["post"]),
    ("/api/v1/hooks/{id}", &["post"]),
    ("/api/v1/failures", &["get"]),
    ("/api/v1/failures/{id}", &["get"]),
    ("/api/v1/failures/{id}/replay", &["post"]),
    ("/api/v1/jobs", &["get", "post"]),
    ("/api/v1/jobs/batch", &["post"]),
    ("/api/v1/jobs/cancel", &["post"]),
    ("/api/v1/jobs/estimate", &["post"]),
    ("/api/v1/jobs/{id}", &["get"]),
    ("/api/v1/jobs/{id}/artifacts", &["get"]),
    ("/api/v1/jobs/{id}/artifacts/{name}", &["get", "put"]),
    ("/api/v1/jobs/{id}/cancel", &["post"]),
    ("/api/v1/jobs/{id}/history", &["get"]),
    ("/api/v1/jobs/{id}/retry", &["post"]),
    ("/api/v1/jobs/{id}/signal", &["get", "put"]),
    ("/api/v1/jobs/{id}/stream", &["get"]),
    ("/api/v1/jobs/{id}/why", &["get"]),
    ("/api/v1/processes", &["get"]),
    ("/api/v1/processes/{name}", &["delete", "get", "put"]),
    ("/api/v1/processes/{name}/eligible", &["get"]),
    ("/api/v1/kv/{collection}", &["get"]),
    ("/api/v1/kv/{collection}/{key}", &["delete", "get", "put"]),
    ("/api/v1/nodes", &["get"]),
    ("/api/v1/pools", &["get"]),
    ("/api/v1/pools/{name}", &["delete", "get", "put"]),
    ("/api/v1/queues", &["get"]),
    ("/api/v1/queues/{name}", &["delete", "get", "put"]),
    ("/api/v1/queues/{name}/pause", &["post"]),
    ("/api/v1/queues/{name}/prune", &["post"]),
    ("/api/v1/queues/{name}/resume", &["post"]),
    ("/api/v1/runtimes", &["get"]),
    ("/api/v1/runtimes/{name}", &["delete", "get", "put"]),
    ("/api/v1/runtimes/{name}/container", &["delete"]),
    ("/api/v1/runtimes/{name}/health", &["get"]),
    ("/api/v1/runtimes/{name}/logs", &["get"]),
    ("/api/v1/runtimes/{name}/move", &["post"]),
    ("/api/v1/runtimes/{name}/operations", &["get"]),
    ("/api/v1/runtimes/{name}/patch", &["post"]),
    ("/api/v1/runtimes/{name}/restart", &["post"]),
    ("/api/v1/runtimes/{name}/start", &["post"]),
    ("/api/v1/runtimes/{name}/stop", &["post"]),
    ("/api/v1/subjects", &["get"]),
    ("/api/v1/subjects/{id}", &["delete", "get", "put"]),
    ("/api/v1/subjects/{id}/backoffs/{process}", &["delete", "put"]),
    ("/api/v1/subjects/{id}/credential", &["delete", "post"]),
    ("/api/v1/subjects/{id}/facts", &["put"]),
    ("/api/v1/subjects/{id}/history", &["get"]),
    ("/api/v1/signals", &["get"]),
    ("/api/v1/signatures", &["get", "post"]),
    ("/api/v1/signatures/match", &["post"]),
    ("/api/v1/signatures/{id}", &["delete", "get", "put"]),
    ("/api/v1/signatures/{id}/merge", &["post"]),
    ("/api/v1/stream", &["get"]),
    ("/api/v1/history", &["get"]),
    ("/api/v1/tasks", &["get"]),
    ("/api/v1/tenants", &["get"]),
    ("/api/v1/tokens", &["get", "post"]),
    ("/api/v1/tokens/{id}", &["delete"]),
    ("/api/v1/topics/{topic}", &["post"]),
    ("/api/v1/triggers", &["get", "post"]),
    ("/api/v1/triggers/{id}", &["delete", "get", "put"]),
    ("/api/v1/triggers/{id}/fire", &["post"]),
    ("/api/v1/triggers/{id}/runs", &["get"]),
    ("/api/v1/ttfs/events", &["get", "post"]),
    ("/api/v1/ttfs/slo", &["get"]),
    ("/api/v1/ttfs/summary", &["get"]),
    ("/api/v1/workers", &["get", "post"]),
    ("/api/v1/workers/{id}", &["delete"]),
    ("/api/v1/workers/{id}/claim", &["post"]),
    ("/api/v1/workers/{id}/drain", &["post"]),
    ("/api/v1/workers/{id}/heartbeat", &["post"]),
    ("/api/v1/workers/{id}/settle", &["post"]),
    ("/healthz", &["get"]),
    ("/metrics", &["get"]),
    ("/openapi.json", &["get"]),
    ("/openai/v1/models", &["get"]),
    ("/openai/v1/models/{model}", &["get"]),
    ("/openai/v1/chat/completions", &["post"]),
    ("/openai/v1/completions", &["post"]),
    ("/openai/v1/embeddings", &["post"]),
    ("/openai/v1/files", &["get", "post"]),
    ("/openai/v1/files/{file}", &["delete", "get"]),
    ("/openai/v1/files/{file}/content", &["get"]),
    ("/openai/v1/batches", &["get", "post"]),
    ("/openai/v1/batches/{batch}", &["get"]),
    ("/openai/v1/batches/{batch}/cancel", &["post"]),
    ("/readyz", &["get"]),
    ("/sign-in", &["get", "post"]),
    ("/sign-out", &["post"]),
    ("/api/v1/jobs/{id}/approvals/{key}", &["post"]),
    ("/api/v1/jobs/{id}/events/{name}", &["post"]),
    ("/api/v1/jobs/{id}/fork", &["post"]),
    ("/api/v1/jobs/{id}/journal", &["get"]),
    ("/api/v1/runs", &["get", "post"]),
    ("/api/v1/runs/{id}", &["get"]),
    ("/api/v1/runs/{id}/cancel", &["post"]),
    ("/api/v1/runs/{id}/nodes", &["post"]),
    ("/api/v1/runs/{id}/retry", &["post"]),
    ("/api/v1/runs/{id}/signal", &["get"]),
    ("/api/v1/runs/{id}/stream", &["get"]),
    ("/api/v1/workers/{id}/journal", &["post"]),
];

/// Requirement X11.
#[tokio::test]
async fn the_openapi_document_lists_every_route() {
    let api = Api::new(Database::sqlite().await).await;
    let document = api.get("/openapi.json").await.json();
    let paths = document["paths"].as_object().unwrap();
    // The router's own list of paths, which also contains a route that is missing from the document.
    let router = format!("{:?}", server::router(api.state.clone()));
    let own: BTreeSet<&str> = router.split('"').filter(|text| text.starts_with('/')).collect();
    let own: BTreeSet<&str> = own.into_iter().filter(|path| !path.contains("__private")).collect();
    assert_eq!(own, paths.keys().map(String::as_str).collect());

    let methods = |path: &str| -> BTreeSet<String> { paths[path].as_object().unwrap().keys().cloned().collect() };
    for (path, expected) in ROUTES {
        assert_eq!(methods(path), expected.iter().map(ToString::to_string).collect(), "{path}");
    }
    assert_eq!(paths.len(), ROUTES.len());
    let mut ids = BTreeSet::new();
    for (path, item) in paths {
        for (method, operation) in item.as_object().unwrap() {
            let problem = &operation["responses"]["default"]["content"]["application/problem+json"];
            assert_eq!(problem["schema"]["$ref"], "#/components/schemas/Problem", "{method} {path}");
            assert!(operation["summary"].is_string(), "{method} {path} has a summary");
            assert!(operation["description"].is_string(), "{method} {path} has a description");
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                assert!(parameter["description"].is_string(), "{method} {path} describes {}", parameter["name"]);
            }
            for (status, response) in operation["responses"].as_object().unwrap() {
                assert!(response["description"].is_string(), "{method} {path} {status}");
            }
            assert!(ids.insert(operation["operationId"].as_str().unwrap()), "{method} {path} has a unique id");
        }
    }
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        let undescribed = undescribed_fields(schema);
        assert!(undescribed.is_empty(), "{name} describes {undescribed:?}");
    }
    // Every referenced schema exists.
    let text = document.to_string();
    for part in text.split("\"#/components/schemas/").skip(1) {
        let name = part.split('"').next().unwrap();
        assert!(document["components"]["schemas"][name].is_object(), "{name}");
    }
}

fn with_token(mut request: Request<Body>, authorization: &str) -> Request<Body> {
    request.headers_mut().insert("authorization", authorization.parse().unwrap());
    request
}

fn undescribed_fields(schema: &Value) -> Vec<&String> {
    let fields = schema["properties"].as_object().into_iter().flatten();
    // An optional object carries the description beside its reference.
    let is_described = |field: &Value| {
        let variants = field["oneOf"].as_array().into_iter().flatten();
        field["description"].is_string() || variants.clone().any(|variant| variant["description"].is_string())
    };
    let mut names: Vec<&String> = fields.filter(|(_, field)| !is_described(field)).map(|(name, _)| name).collect();
    for parts in ["allOf", "anyOf", "oneOf"] {
        names.extend(schema[parts].as_array().into_iter().flatten().flat_map(undescribed_fields));
    }
    names
}

/// Requirement X11.
#[tokio::test]
async fn every_json_body_has_an_example_that_its_route_accepts() {
    let api = Api::new(Database::sqlite().await).await;
    let document = api.get("/openapi.json").await.json();
    let authorization = format!("Bearer {}", api.token(json!({"name": "admin", "role": "admin"})).await);
    let runtime = json_request("PUT", "/api/v1/runtimes/llama3", &json!({"image": "llama"}));
    assert!(api.send(with_token(runtime, &authorization)).await.status.is_success());
    let mut failures = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            for (media_type, content) in operation["requestBody"]["content"].as_object().into_iter().flatten() {
                // A report of facts carries the credential of the subject's agent.
                if !media_type.contains("json") || path == "/api/v1/subjects/{id}/facts" {
                    continue;
                }
                let Some(example) = content.get("example") else {
                    failures.push(format!("{method} {path}: no example"));
                    continue;
                };
                let concrete = path.replace("{id}", "01a1dda7-a89f-7c5e-a79e-3a03bdfffb4c").replace("{name}", "llama3");
                let concrete = concrete.split('/').map(|part| if part.starts_with('{') { "x" } else { part });
                let concrete = concrete.collect::<Vec<_>>().join("/");
                let mut example = example.clone();
                if path == "/api/v1/calls" {
                    // No worker answers the call.
                    example["timeout_s"] = json!(1);
                }
                let request = request(&method.to_uppercase(), &concrete)
                    .header("content-type", media_type)
                    .header("authorization", &authorization)
                    .header("ce-specversion", "1.0")
                    .header("ce-id", "7f1c")
                    .header("ce-source", "/shop")
                    .header("ce-type", "order.created")
                    .body(Body::from(example.to_string()))
                    .unwrap();
                let response = api.send(request).await;
                // The objects of the examples do not exist; everything else about the request is right.
                let is_accepted =
                    response.status.is_success() || matches!(response.status.as_u16(), 404 | 409 | 503 | 504);
                if !is_accepted {
                    failures.push(format!("{method} {path}: {} {:?}", response.status, response.body));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Requirement X10.
#[tokio::test]
async fn unknown_routes_and_methods_return_problem_documents() {
    let api = Api::new(Database::sqlite().await).await;
    for path in ["/nowhere", "/api/v1/job", "/api/v2/jobs", "/api/v1/jobs/", "//", "/api/v1/jobs/a/b/c/d"] {
        api.get(path).await.problem(404, "no_such_route", None);
    }
    let response = api.call("DELETE", "/api/v1/jobs").await;
    response.problem(405, "method_not_allowed", None);
    let allowed: BTreeSet<&str> = response.header("allow").split(',').collect();
    assert_eq!(allowed, ["GET", "HEAD", "POST"].into());
    api.call("BREW", "/api/v1/queues").await.problem(405, "method_not_allowed", None);
    let head = api.call("HEAD", "/api/v1/jobs").await;
    assert_eq!((head.status.as_u16(), head.body.len()), (200, 0));
}

/// Requirement X11.
#[tokio::test]
async fn health_readiness_tasks_and_the_overview_page_respond() {
    on_both(async |db| {
        let api = Api::new(db).await;
        assert_eq!(api.get("/healthz").await.json(), json!({"status": "ok"}));
        assert_eq!(api.get("/readyz").await.json(), json!({"status": "ok"}));
        let tasks = api.get("/api/v1/tasks").await.json();
        assert!(tasks["items"].as_array().unwrap().iter().any(|task| task["name"] == "sweep_leases"));
        api.job("a/b").await;
        let page = api.get("/").await;
        let html = String::from_utf8(page.body.to_vec()).unwrap();
        assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
        assert!(html.contains("Windlass") && html.contains("openapi.json") && html.contains(">a/b</a>"), "{html}");
        // A running task could lock a table that the migration drops.
        api.state.engine.stop().await;
        api.db.store.migrate_down(0).await.unwrap();
        let ready = api.get("/readyz").await;
        assert_eq!((ready.status.as_u16(), ready.json()["status"].clone()), (503, json!("unavailable")));
        assert_eq!(api.get("/healthz").await.status, 200);
    })
    .await;
}

/// Runs SQL statements.
struct Statements(&'static str);

impl Operation for Statements {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        tx.batch(self.0).await
    }
}

/// Requirement X12.
#[tokio::test]
async fn a_server_with_failing_writes_is_not_ready() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let ready = async |status: u16| {
            eventually(&format!("/readyz returns {status}"), async || {
                let ready = api.get("/readyz").await;
                (ready.status == status).then(|| ready.json())
            })
            .await
        };
        api.db.store.write(Statements("alter table service rename to service_gone")).await.unwrap();
        let unavailable = json!({"status": "unavailable", "detail": "the database accepts no writes"});
        assert_eq!(ready(503).await, unavailable);
        api.db.store.write(Statements("alter table service_gone rename to service")).await.unwrap();
        assert_eq!(ready(200).await, json!({"status": "ok"}));
    })
    .await;
}

/// Requirement X11.
#[tokio::test]
async fn metrics_have_help_types_and_bounded_labels() {
    on_both(async |db| {
        let api = Api::new(db).await;
        api.claimed("metered").await;
        api.get("/nowhere/at/all").await;
        let response = api.get("/metrics").await;
        let text = String::from_utf8(response.body.to_vec()).unwrap();
        for expected in [
            "windlass_jobs{queue=\"metered\",state=\"running\"} 1",
            "windlass_queue_oldest_seconds{queue=\"metered\"} 0",
            "windlass_workers{state=\"working\"} 1",
            "windlass_workers{state=\"draining\"} 0",
            "windlass_database_bytes ",
            "windlass_quarantined 0",
            "windlass_task_last_success_timestamp_seconds{task=\"beat\"} ",
            "windlass_database_up 1",
            "windlass_build_info{version=",
            "route=\"/api/v1/workers/{id}/claim\"",
            "route=\"unmatched\"",
            "windlass_jobs_enqueued_total ",
            "windlass_http_request_seconds_bucket",
        ] {
            assert!(text.contains(expected), "{expected} in {text}");
        }
        assert!(!text.contains("/nowhere"));
        let comments = |kind: &str| -> BTreeSet<String> {
            let start = format!("# {kind} ");
            text.lines()
                .filter_map(|line| line.strip_prefix(&start))
                .map(|line| line.split(' ').next().unwrap().into())
                .collect()
        };
        let (help, types) = (comments("HELP"), comments("TYPE"));
        assert_eq!(help, types, "every metric has a help text");
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap();
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
            assert!(types.contains(name) || types.contains(base), "{line}");
        }
    })
    .await;
}

/// Requirement X7.
#[tokio::test]
async fn without_tokens_only_loopback_hosts_are_answered() {
    let api = Api::new(Database::sqlite().await).await;
    let host = |host: &str| axum::http::Request::get("/api/v1/jobs").header("host", host).body(Body::empty()).unwrap();
    for name in ["localhost:7717", "127.0.0.1", "[::1]:7717"] {
        assert_eq!(api.send(host(name)).await.status, 200);
    }
    for name in ["evil.example", "localhost.evil.example", "192.168.0.7:7717"] {
        api.send(host(name)).await.problem(403, "host_not_allowed", None);
    }
    let none = axum::http::Request::get("/api/v1/jobs").body(Body::empty()).unwrap();
    api.send(none).await.problem(403, "host_not_allowed", None);
    let absolute = axum::http::Request::get("http://evil.example/api/v1/jobs").header("host", "localhost");
    api.send(absolute.body(Body::empty()).unwrap()).await.problem(403, "host_not_allowed", None);

    let from = |origin: &str| {
        let mut request = json_request("POST", "/api/v1/jobs", &json!({"queue": "q", "kind": "k"}));
        request.headers_mut().insert("origin", origin.parse().unwrap());
        request
    };
    for origin in ["https://evil.example", "null", "http://localhost.evil.example"] {
        api.send(from(origin)).await.problem(403, "host_not_allowed", None);
    }
    assert_eq!(api.job_count().await, 0);
    assert_eq!(api.send(from("http://localhost")).await.status, 202);
    let read = request("GET", "/api/v1/jobs").header("origin", "https://evil.example").body(Body::empty()).unwrap();
    assert_eq!(api.send(read).await.status, 200, "without a CORS header the page cannot read the response");

    let open = ServerOptions { host_check: HostCheck::Off, ..ServerOptions::default() };
    let api = Api::with(Database::sqlite().await, open).await;
    assert_eq!(api.send(host("windlass.example")).await.status, 200);
}

#[tokio::test]
async fn an_internal_error_hides_its_details_and_acknowledges_nothing() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let worker = api.worker("q").await;
        // A running task could lock a table that the migration drops.
        api.state.engine.stop().await;
        api.db.store.migrate_down(0).await.unwrap();
        for response in [
            api.post("/api/v1/jobs", json!({"queue": "q", "kind": "k"})).await,
            api.post(&format!("/api/v1/workers/{worker}/claim"), json!({"max": 1})).await,
        ] {
            response.problem(500, "internal", None);
            let detail = response.json()["detail"].as_str().unwrap().to_owned();
            assert!(!detail.contains("table") && !detail.contains("relation"), "{detail}");
        }
    })
    .await;
}

/// Sends two requests on one connection and reads each response only after the whole request is written.
async fn responses_after_writing(address: SocketAddr) -> std::io::Result<Vec<String>> {
    let mut writer = TcpStream::connect(address).await?;
    let length = 20 << 20;
    let mut responses = Vec::new();
    for head in [
        "PUT /api/v1/jobs/00000000-0000-7000-8000-000000000000/artifacts/a HTTP/1.1",
        "POST /api/v1/jobs HTTP/1.1\r\ncontent-type: application/json",
    ] {
        let head = format!("{head}\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n");
        writer.write_all(head.as_bytes()).await?;
        writer.write_all(&vec![b' '; length]).await?;
        let mut response = vec![0; 1_000];
        match writer.read(&mut response).await? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            read => responses.push(String::from_utf8_lossy(&response[..read]).into_owned()),
        }
    }
    Ok(responses)
}

#[tokio::test]
async fn a_stop_answers_long_polls_immediately_and_refuses_new_connections() {
    let api = Api::new(Database::sqlite().await).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let tracker = TaskTracker::new();
    let server = tracker.spawn(serve(listener, api.state.clone(), shutdown.clone()));

    // A client that writes the whole request first still receives the rejection. The server reads on for two seconds,
    // which a busy machine sometimes exceeds; then the attempt is repeated.
    let rejections = async {
        loop {
            let began = Instant::now();
            match responses_after_writing(address).await {
                Ok(responses) => break responses,
                Err(error) => assert!(began.elapsed() >= Duration::from_secs(2), "cut off: {error}"),
            }
        }
    };
    for response in before_timeout("the requests are rejected", rejections).await {
        assert!(response.starts_with("HTTP/1.1 4") && response.contains("application/problem+json"), "{response}");
    }

    let worker = api.worker("q").await;
    let lease = async || api.get("/api/v1/workers").await.json()["items"][0]["lease_until"].clone();
    let granted = lease().await;
    api.db.pass_ms(60_000).await;
    let mut connection = TcpStream::connect(address).await.unwrap();
    let body = r#"{"max":1,"wait_s":60}"#;
    let head = format!(
        "POST /api/v1/workers/{worker}/claim HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let sent_at = Instant::now();
    connection.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    // A claim renews a lease of this age when it starts. Then it waits.
    wait_until("the claim waits", async || lease().await != granted).await;
    shutdown.cancel();
    let mut response = String::new();
    connection.read_to_string(&mut response).await.unwrap();
    assert!(sent_at.elapsed() < Duration::from_secs(60), "the stop ends the long poll");
    assert!(response.starts_with("HTTP/1.1 200 OK") && response.ends_with(r#"{"jobs":[]}"#), "{response}");
    server.await.unwrap().unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}
