//! A server without a socket, and short words for asking it.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use bytes::Bytes;
use engine::{Engine, EngineOptions};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use server::{AppState, ServerOptions, router};
use store::artifacts::Blobs;
use tempfile::TempDir;
use testkit::Database;
use tower::ServiceExt;

/// How long anything may take before a test gives up: machines are noisy, and no test is about speed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Nobody beats here, and what a worker holds must not be taken from it because the machine stood still.
const LEASE_S: i64 = 300;

pub(crate) struct Api {
    pub(crate) db: Database,
    pub(crate) state: AppState,
    router: Router,
    pub(crate) blobs: TempDir,
}

pub(crate) struct Answer {
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

    pub(crate) async fn ask(&self, request: Request<Body>) -> Answer {
        let answer = tokio::time::timeout(PATIENCE, self.router.clone().oneshot(request)).await;
        let (parts, body) = answer.expect("an answer in time").unwrap().into_parts();
        // A stream does not end: that it was let through is all there is to hear.
        let is_stream = parts.headers.get("content-type").is_some_and(|kind| kind == "text/event-stream");
        let body = if is_stream { Bytes::new() } else { body.collect().await.unwrap().to_bytes() };
        Answer { status: parts.status, headers: parts.headers, body }
    }

    /// The answer as it comes, for one that does not end.
    pub(crate) async fn raw(&self, request: Request<Body>) -> axum::http::Response<Body> {
        self.router.clone().oneshot(request).await.unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.ask(request("GET", path).body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.ask(json_request("POST", path, &body)).await
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> Answer {
        self.ask(json_request("PUT", path, &body)).await
    }

    /// Without a body.
    pub(crate) async fn call(&self, method: &str, path: &str) -> Answer {
        self.ask(request(method, path).body(Body::empty()).unwrap()).await
    }

    /// The id of a new job of kind `k`.
    pub(crate) async fn job(&self, queue: &str) -> String {
        let answer = self.post("/api/v1/jobs", json!({"queue": queue, "kind": "k", "payload": {"n": 1}})).await;
        assert_eq!(answer.status, 202);
        answer.json()["id"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn worker(&self, queue: &str) -> String {
        let worker = json!({"name": "w", "queues": [queue], "lease_s": LEASE_S});
        let answer = self.post("/api/v1/workers", worker).await;
        assert_eq!(answer.status, 201);
        answer.json()["id"].as_str().unwrap().to_owned()
    }

    /// A job that a worker has claimed: the job, the worker and the epoch.
    pub(crate) async fn claimed(&self, queue: &str) -> (String, String, i64) {
        let (job, worker) = (self.job(queue).await, self.worker(queue).await);
        let claim = self.post(&format!("/api/v1/workers/{worker}/claim"), json!({"max": 1})).await.json();
        assert_eq!(claim["jobs"][0]["id"], job.as_str());
        (job, worker, claim["jobs"][0]["epoch"].as_i64().unwrap())
    }

    pub(crate) async fn settle(&self, worker: &str, outcome: Value) -> Answer {
        self.post(&format!("/api/v1/workers/{worker}/settle"), json!({"outcomes": [outcome]})).await
    }

    pub(crate) async fn job_count(&self) -> usize {
        self.get("/api/v1/jobs?limit=500").await.json()["items"].as_array().unwrap().len()
    }
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{} {:?}", self.status, self.body))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The answer is a problem document with this status, code and field.
    #[track_caller]
    pub(crate) fn problem(&self, status: u16, code: &str, field: Option<&str>) {
        assert_eq!(self.header("content-type"), "application/problem+json", "{:?}", self.body);
        let problem = self.json();
        let told = (self.status.as_u16(), problem["code"].as_str(), problem["field"].as_str());
        assert_eq!(told, (status, Some(code), field), "{problem}");
        assert_eq!(problem["status"], status);
        for member in ["type", "title", "detail"] {
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

/// The members of an object, in order.
pub(crate) fn members(value: &Value) -> Vec<&str> {
    let mut names: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

/// Waits, though not for ever.
pub(crate) async fn in_time<T>(waiting: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, waiting).await.expect("in time")
}
