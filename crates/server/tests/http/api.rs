//! A server without a socket, and helpers for requests to it.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use bytes::Bytes;
use engine::{Engine, EngineOptions};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use server::{AppState, ServerOptions, router};
use store::queue::artifacts::Blobs;
use tempfile::TempDir;
use testkit::Database;
use testkit::eventually::{TIMEOUT, before_timeout, try_eventually};
use tower::ServiceExt;

/// A long lease, because the workers of these tests send no heartbeats and the machine may pause.
const LEASE_S: i64 = 300;

pub(crate) struct Api {
    pub(crate) db: Database,
    pub(crate) state: AppState,
    router: Router,
    pub(crate) blobs: TempDir,
}

pub(crate) struct Response {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Api {
    pub(crate) async fn new(db: Database) -> Self {
        Self::with(db, ServerOptions::default()).await
    }

    pub(crate) async fn with(db: Database, options: ServerOptions) -> Self {
        Self::build(db, options, EngineOptions::default()).await
    }

    pub(crate) async fn with_engine(db: Database, engine: EngineOptions) -> Self {
        Self::build(db, ServerOptions::default(), engine).await
    }

    async fn build(db: Database, options: ServerOptions, engine: EngineOptions) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let blobs = Blobs::folder(folder.path()).unwrap();
        let engine = EngineOptions { blobs: Some(blobs.clone()), ..engine };
        let engine = Engine::start(db.store.clone(), engine).await.unwrap();
        let state = AppState::new(Arc::new(engine), Arc::new(blobs), options);
        Self { db, router: router(state.clone()), state, blobs: folder }
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Response {
        let response = before_timeout("the server responds", self.router.clone().oneshot(request)).await;
        let (parts, body) = response.unwrap().into_parts();
        // A stream has no end, so its body is not read.
        let is_stream = parts.headers.get("content-type").is_some_and(|kind| kind == "text/event-stream");
        let body = if is_stream { Bytes::new() } else { body.collect().await.unwrap().to_bytes() };
        Response { status: parts.status, headers: parts.headers, body }
    }

    /// Returns the response with its unread body, for a stream.
    pub(crate) async fn raw(&self, request: Request<Body>) -> axum::http::Response<Body> {
        self.router.clone().oneshot(request).await.unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> Response {
        self.send(request("GET", path).body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Response {
        self.send(json_request("POST", path, &body)).await
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> Response {
        self.send(json_request("PUT", path, &body)).await
    }

    /// Waits until the resource satisfies the condition, and returns it.
    pub(crate) async fn get_when(&self, path: &str, condition: impl Fn(&Value) -> bool) -> Value {
        response_when(path, async || self.get(path).await, condition).await
    }

    /// Waits until the job has ended.
    pub(crate) async fn ended(&self, job: &str) -> Value {
        let has_ended = |job: &Value| ["succeeded", "failed", "canceled"].contains(&job["state"].as_str().unwrap());
        self.get_when(&format!("/api/v1/jobs/{job}?wait=20s"), has_ended).await
    }

    /// Sends a request without a body.
    pub(crate) async fn call(&self, method: &str, path: &str) -> Response {
        self.send(request(method, path).body(Body::empty()).unwrap()).await
    }

    /// Enqueues a job of kind `k` and returns its id.
    pub(crate) async fn job(&self, queue: &str) -> String {
        let response = self.post("/api/v1/jobs", json!({"queue": queue, "kind": "k", "payload": {"n": 1}})).await;
        assert_eq!(response.status, 202);
        response.json()["id"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn worker(&self, queue: &str) -> String {
        let worker = json!({"name": "w", "queues": [queue], "lease_s": LEASE_S});
        let response = self.post("/api/v1/workers", worker).await;
        assert_eq!(response.status, 201);
        response.json()["id"].as_str().unwrap().to_owned()
    }

    /// Enqueues and claims a job. Returns the job, the worker and the epoch.
    pub(crate) async fn claimed(&self, queue: &str) -> (String, String, i64) {
        let (job, worker) = (self.job(queue).await, self.worker(queue).await);
        let claim = self.post(&format!("/api/v1/workers/{worker}/claim"), json!({"max": 1})).await.json();
        assert_eq!(claim["jobs"][0]["id"], job.as_str());
        (job, worker, claim["jobs"][0]["epoch"].as_i64().unwrap())
    }

    pub(crate) async fn settle(&self, worker: &str, outcome: Value) -> Response {
        self.post(&format!("/api/v1/workers/{worker}/settle"), json!({"outcomes": [outcome]})).await
    }

    pub(crate) async fn job_count(&self) -> usize {
        self.get("/api/v1/jobs?limit=500").await.json()["items"].as_array().unwrap().len()
    }
}

impl Response {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{} {:?}", self.status, self.body))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// Asserts that the response is a problem document with this status, code and field.
    #[track_caller]
    pub(crate) fn problem(&self, status: u16, code: &str, field: Option<&str>) {
        assert_eq!(self.header("content-type"), "application/problem+json", "{:?}", self.body);
        let problem = self.json();
        let actual = (self.status.as_u16(), problem["code"].as_str(), problem["field"].as_str());
        assert_eq!(actual, (status, Some(code), field), "{problem}");
        assert_eq!(problem["status"], status);
        assert_eq!(problem["type"], format!("/docs/reference/error-codes#{code}"));
        for member in ["title", "detail"] {
            assert!(problem[member].as_str().is_some_and(|text| !text.is_empty()), "{problem}");
        }
    }
}

pub(crate) fn request(method: &str, path: &str) -> axum::http::request::Builder {
    Request::builder().method(method).uri(path).header("host", "localhost")
}

pub(crate) fn json_request(method: &str, path: &str, body: &Value) -> Request<Body> {
    request(method, path).header("content-type", "application/json").body(Body::from(body.to_string())).unwrap()
}

/// Repeats a request until its response satisfies the condition. Panics with the last response after the timeout.
pub(crate) async fn response_when(
    path: &str,
    get: impl AsyncFn() -> Response,
    condition: impl Fn(&Value) -> bool,
) -> Value {
    let mut last = Value::Null;
    let found = try_eventually(TIMEOUT, async || {
        last = get().await.json();
        condition(&last).then(|| last.clone())
    });
    found.await.unwrap_or_else(|| panic!("timed out: {path}: {last}"))
}

/// Returns the member names of an object, sorted.
pub(crate) fn members(value: &Value) -> Vec<&str> {
    let mut names: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}
