//! What a token permits over HTTP.

use axum::body::Body;
use axum::http::Request;
use domain::TenantId;
use serde_json::{Value, json};
use testkit::{Database, on_both};

use testkit::eventually::before_timeout;

use crate::api::{Api, Response, json_request, request, response_when};

/// A client with a token.
pub(crate) struct Caller<'a> {
    pub(crate) api: &'a Api,
    pub(crate) token: String,
}

impl Api {
    /// Creates a token on the server's machine and returns its text.
    pub(crate) async fn token(&self, request: Value) -> String {
        let request = serde_json::from_value(request).unwrap();
        server::access::local_admin::create_token(&self.db.store, request).await.unwrap().token
    }

    pub(crate) async fn caller(&self, request: Value) -> Caller<'_> {
        Caller { api: self, token: self.token(request).await }
    }
}

impl Caller<'_> {
    pub(crate) async fn send(&self, mut request: Request<Body>) -> Response {
        request.headers_mut().insert("authorization", format!("Bearer {}", self.token).parse().unwrap());
        self.api.send(request).await
    }

    pub(crate) async fn get(&self, path: &str) -> Response {
        self.send(request("GET", path).body(Body::empty()).unwrap()).await
    }

    /// Waits until the resource satisfies the condition, and returns it.
    pub(crate) async fn get_when(&self, path: &str, condition: impl Fn(&Value) -> bool) -> Value {
        response_when(path, async || self.get(path).await, condition).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Response {
        self.send(json_request("POST", path, &body)).await
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> Response {
        self.send(json_request("PUT", path, &body)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Response {
        self.send(request("DELETE", path).body(Body::empty()).unwrap()).await
    }

    /// Enqueues a job with a payload and returns its id.
    pub(crate) async fn job(&self, queue: &str) -> String {
        let response = self.post("/api/v1/jobs", json!({"queue": queue, "kind": "k", "payload": {"secret": 7}})).await;
        assert_eq!(response.status, 202, "{:?}", response.body);
        response.json()["id"].as_str().unwrap().to_owned()
    }

    /// Enqueues and claims a job. Returns the job, the worker and the epoch.
    pub(crate) async fn claimed(&self, queue: &str) -> (String, String, i64) {
        self.job(queue).await;
        self.claim_first(queue).await
    }

    async fn claim_first(&self, queue: &str) -> (String, String, i64) {
        let worker = self.post("/api/v1/workers", json!({"name": "w", "queues": [queue]})).await.json();
        let worker = worker["id"].as_str().unwrap().to_owned();
        let claimed = self.post(&format!("/api/v1/workers/{worker}/claim"), json!({"max": 1})).await.json();
        let job = &claimed["jobs"][0];
        (job["id"].as_str().unwrap().to_owned(), worker, job["epoch"].as_i64().unwrap())
    }

    /// Claims the one job of the queue and completes it with a result, an artifact and a log.
    pub(crate) async fn run(&self, queue: &str) {
        let (job, worker, epoch) = self.claim_first(queue).await;
        let job_id = &job;
        for name in ["log", "picture"] {
            let path = format!("/api/v1/jobs/{job_id}/artifacts/{name}");
            let put = request("PUT", &path).header("x-windlass-epoch", epoch.to_string()).body(Body::from("bytes"));
            assert_eq!(self.send(put.unwrap()).await.status, 201);
        }
        let signal = json!({"epoch": epoch, "summary": "half", "payload": {"secret": 8}, "diagnostics": {"secret": 9}});
        assert_eq!(self.put(&format!("/api/v1/jobs/{job_id}/signal"), signal).await.status, 200);
        let outcome = json!({"job_id": job, "epoch": epoch, "outcome": "finish", "result": {"secret": 10}});
        let settled = self.post(&format!("/api/v1/workers/{worker}/settle"), json!({"outcomes": [outcome]})).await;
        assert_eq!(settled.json()["results"][0]["status"], "applied");
    }
}

/// Requirement X7.
#[tokio::test]
async fn the_first_token_closes_all_routes_except_health() {
    on_both(async |db| {
        let api = Api::new(db).await;
        assert_eq!(api.get("/api/v1/jobs").await.status, 200);
        let admin = api.caller(json!({"name": "root", "role": "admin"})).await;
        for path in ["/api/v1/jobs", "/openapi.json", "/metrics", "/nowhere", "/api/v1/tokens"] {
            let response = api.get(path).await;
            response.problem(401, "token_required", None);
            assert!(response.header("www-authenticate").starts_with("Bearer"));
        }
        api.post("/api/v1/jobs", json!({"queue": "q", "kind": "k"})).await.problem(401, "token_required", None);
        for path in ["/healthz", "/readyz"] {
            assert_eq!(api.get(path).await.status, 200);
        }
        assert_eq!(admin.get("/api/v1/jobs").await.json()["items"], json!([]));
        admin.get("/nowhere").await.problem(404, "no_such_route", None);
        for bad in ["", "x", "windlass_", &format!("{}x", admin.token), &admin.token.to_lowercase()] {
            let unknown = Caller { api: &api, token: bad.to_owned() };
            unknown.get("/api/v1/jobs").await.problem(401, "invalid_token", None);
        }
        let basic = request("GET", "/api/v1/jobs").header("authorization", format!("Basic {}", admin.token));
        api.send(basic.body(Body::empty()).unwrap()).await.problem(401, "invalid_token", None);
        // The host header is not checked for requests with a token.
        let elsewhere = Request::get("/api/v1/jobs").header("host", "windlass.example");
        assert_eq!(admin.send(elsewhere.body(Body::empty()).unwrap()).await.status, 200);
    })
    .await;
}

/// Requirement X7.
#[tokio::test]
async fn the_first_token_can_be_created_over_http() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let made = api.post("/api/v1/tokens", json!({"name": "root", "role": "admin"})).await;
        assert_eq!(made.status, 201, "{:?}", made.body);
        api.post("/api/v1/tokens", json!({"name": "more", "role": "admin"})).await.problem(401, "token_required", None);
        let admin = Caller { api: &api, token: made.json()["token"].as_str().unwrap().to_owned() };
        assert_eq!(admin.get("/api/v1/tokens").await.json()["items"].as_array().unwrap().len(), 1);
    })
    .await;
}

/// Requirement X7.
#[tokio::test]
async fn of_two_concurrent_first_tokens_only_one_is_created() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let make = async || api.post("/api/v1/tokens", json!({"name": "root", "role": "admin"})).await;
        let (one, other) = tokio::join!(make(), make());
        let late = if one.status == 201 { &other } else { &one };
        assert_eq!([one.status.as_u16(), other.status.as_u16()].iter().sum::<u16>(), 201 + 401);
        late.problem(401, "token_required", None);
        assert_eq!(api.db.store.list_tokens(TenantId::DEFAULT, None, 10).await.unwrap().len(), 1);
    })
    .await;
}

/// Requirement X7.
#[tokio::test]
async fn tokens_are_created_listed_and_revoked_over_http() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let admin = api.caller(json!({"name": "root", "role": "admin"})).await;
        let made = admin
            .post(
                "/api/v1/tokens",
                json!({"name": "ci", "role": "producer", "queues": ["build"], "rights": ["read_logs"]}),
            )
            .await;
        assert_eq!(made.status, 201, "{:?}", made.body);
        let made = made.json();
        assert_eq!(
            (made["name"].as_str(), made["tenant"].as_str(), made["state"].as_str(), made["created_by"].as_str()),
            (Some("ci"), Some("default"), Some("active"), Some("root"))
        );
        let ci = Caller { api: &api, token: made["token"].as_str().unwrap().to_owned() };
        ci.job("build").await;
        ci.post("/api/v1/jobs", json!({"queue": "other", "kind": "k"})).await.problem(403, "forbidden", None);
        let listed = admin.get("/api/v1/tokens").await;
        assert_eq!(listed.json()["items"].as_array().unwrap().len(), 2);
        assert!(!String::from_utf8_lossy(&listed.body).contains("windlass_"), "a token is shown only once");
        let path = format!("/api/v1/tokens/{}", made["id"].as_str().unwrap());
        assert_eq!(admin.delete(&path).await.status, 204);
        ci.get("/api/v1/jobs").await.problem(401, "invalid_token", None);
        assert_eq!(admin.delete(&path).await.status, 204, "a revocation is idempotent");
        admin.delete("/api/v1/tokens/00000000-0000-7000-8000-000000000000").await.problem(404, "not_found", None);
        assert_eq!(admin.get("/api/v1/tokens").await.json()["items"][0]["state"], "revoked");
        for (body, field) in [
            (json!({"name": "", "role": "viewer"}), "name"),
            (json!({"name": "x", "role": "root"}), "role"),
            (json!({"name": "x", "role": "viewer", "rights": ["manage_tokens"]}), "rights[0]"),
            (json!({"name": "x", "role": "viewer", "queues": []}), "queues"),
            (json!({"name": "x", "role": "viewer", "queues": ["a b"]}), "queues[0]"),
            (json!({"name": "x", "role": "viewer", "tenant": "elsewhere"}), "tenant"),
            (json!({"name": "x", "role": "worker", "serves": "*"}), "serves"),
            (json!({"name": "x", "role": "viewer", "expires_at": "2001-01-01T00:00:00Z"}), "expires_at"),
        ] {
            admin.post("/api/v1/tokens", body).await.problem(422, "invalid_field", Some(field));
        }
    })
    .await;
}

/// Requirement X7.
#[tokio::test]
async fn job_contents_require_separate_rights() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let producer = api.caller(json!({"name": "shop", "role": "producer"})).await;
        let worker = api.caller(json!({"name": "machine", "role": "worker"})).await;
        let viewer = api.caller(json!({"name": "eye", "role": "viewer"})).await;
        let job = producer.job("q").await;
        let path = format!("/api/v1/jobs/{job}");
        // A long poll that starts before the job ends must not show more than a simple request.
        let waiting_path = format!("{path}?wait=60s");
        let waiting = async {
            loop {
                let response = viewer.get(&waiting_path).await;
                if response.json()["state"] == "succeeded" {
                    break response;
                }
            }
        };
        let (waited, ()) = tokio::join!(before_timeout("the job succeeds", waiting), worker.run("q"));
        for response in [waited, viewer.get(&path).await] {
            let seen = response.json();
            assert_eq!(
                (seen["state"].as_str(), &seen["payload"], &seen["result"]),
                (Some("succeeded"), &Value::Null, &Value::Null)
            );
            assert_eq!(seen["redacted"], json!(["payload", "result", "error.message"]));
            assert!(!String::from_utf8_lossy(&response.body).contains("secret"));
        }
        for part in ["", "/signal", "/history", "/artifacts", "/why"] {
            let response = viewer.get(&format!("{path}{part}")).await;
            assert_eq!(response.status, 200, "{part}");
            assert!(!String::from_utf8_lossy(&response.body).contains("secret"), "{part}");
        }
        for found in ["/api/v1/jobs?text=secret", "/api/v1/jobs?text=7"] {
            assert_eq!(viewer.get(found).await.json()["items"], json!([]), "a search must not reveal contents");
        }
        for name in ["log", "picture"] {
            viewer.get(&format!("{path}/artifacts/{name}")).await.problem(403, "forbidden", None);
        }

        let own = producer.get(&path).await.json();
        assert_eq!((own["payload"]["secret"].as_i64(), own["result"]["secret"].as_i64()), (Some(7), Some(10)));
        assert_eq!(producer.get(&format!("{path}/artifacts/log")).await.status, 200);
        assert_eq!(producer.get("/api/v1/jobs?text=secret").await.json()["items"][0]["id"], job.as_str());

        for (right, sees) in [
            ("read_payloads", [true, false, false, false]),
            ("read_results", [false, true, false, false]),
            ("read_artifacts", [false, false, true, false]),
            ("read_logs", [false, false, false, true]),
        ] {
            let viewer = api.caller(json!({"name": right, "role": "viewer", "rights": [right]})).await;
            let seen = viewer.get(&path).await.json();
            let got = [
                !seen["payload"].is_null(),
                !seen["result"].is_null(),
                viewer.get(&format!("{path}/artifacts/picture")).await.status == 200,
                viewer.get(&format!("{path}/artifacts/log")).await.status == 200,
            ];
            assert_eq!(got, sees, "{right}");
        }
    })
    .await;
}

/// Requirement X7.
#[tokio::test]
async fn a_producer_sees_only_its_own_jobs() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let shop = api.caller(json!({"name": "shop", "role": "producer"})).await;
        let bank = api.caller(json!({"name": "bank", "role": "producer"})).await;
        let job = shop.job("q").await;
        let missing = "00000000-0000-7000-8000-000000000000";
        for part in ["", "?wait=5s", "/signal", "/history", "/artifacts", "/why", "/artifacts/log"] {
            let there = bank.get(&format!("/api/v1/jobs/{job}{part}")).await;
            let nowhere = bank.get(&format!("/api/v1/jobs/{missing}{part}")).await;
            assert_eq!((there.status.as_u16(), &there.body), (404, &nowhere.body), "{part}");
        }
        assert_eq!(bank.get("/api/v1/jobs").await.json()["items"], json!([]));
        assert_eq!(shop.get("/api/v1/jobs").await.json()["items"][0]["id"], job.as_str());
        // Ownership is by the token's name, so a new token of the same name owns the job.
        let again = api.caller(json!({"name": "shop", "role": "producer"})).await;
        assert_eq!(again.get(&format!("/api/v1/jobs/{job}")).await.status, 200);
    })
    .await;
}

/// Requirement X7.
#[tokio::test]
async fn a_token_limited_to_queues_reaches_no_other_queue() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let admin = api.caller(json!({"name": "root", "role": "admin"})).await;
        let narrow = api.caller(json!({"name": "n", "role": "admin", "queues": ["mine"]})).await;
        let (mine, other) = (admin.job("mine").await, admin.job("other").await);
        assert_eq!(narrow.get(&format!("/api/v1/jobs/{mine}")).await.status, 200);
        for part in ["", "?wait=5s", "/signal", "/history", "/artifacts", "/why", "/artifacts/x"] {
            assert_eq!(narrow.get(&format!("/api/v1/jobs/{other}{part}")).await.status, 404, "{part}");
        }
        let listed = narrow.get("/api/v1/jobs").await.json();
        assert_eq!(listed["items"].as_array().unwrap().len(), 1);
        assert_eq!(narrow.get("/api/v1/queues").await.json()["items"].as_array().unwrap().len(), 1);
        for (method, path, body) in [
            ("POST", "/api/v1/jobs".to_owned(), json!({"queue": "other", "kind": "k"})),
            (
                "POST",
                "/api/v1/jobs/batch".into(),
                json!({"jobs": [{"queue": "mine", "kind": "k"}, {"queue": "other", "kind": "k"}]}),
            ),
            ("POST", "/api/v1/jobs/cancel".into(), json!({"queue": "other", "unique_key": "u"})),
            ("POST", "/api/v1/jobs/estimate".into(), json!({"queue": "other", "kind": "k"})),
            ("POST", "/api/v1/workers".into(), json!({"name": "w", "queues": ["mine", "other"]})),
            ("PUT", "/api/v1/queues/other".into(), json!({})),
            ("POST", "/api/v1/queues/other/pause".into(), json!({})),
            ("POST", "/api/v1/queues/other/resume".into(), json!({})),
            ("GET", "/api/v1/queues/other".into(), Value::Null),
            ("GET", "/api/v1/workers".into(), Value::Null),
            ("POST", "/api/v1/tokens".into(), json!({"name": "x", "role": "viewer", "queues": ["mine"]})),
        ] {
            let response = narrow.send(json_request(method, &path, &body)).await;
            assert_eq!(response.status, 403, "{method} {path}");
        }
        assert_eq!(narrow.post(&format!("/api/v1/jobs/{other}/cancel"), json!({})).await.status, 404);
        let wide = admin.post("/api/v1/workers", json!({"name": "w", "queues": ["mine", "other"]})).await.json();
        let wide = wide["id"].as_str().unwrap();
        for verb in ["claim", "heartbeat", "settle", "drain"] {
            let body = match verb {
                "claim" => json!({"max": 1}),
                "settle" => json!({"outcomes": []}),
                _ => json!({}),
            };
            let response = narrow.post(&format!("/api/v1/workers/{wide}/{verb}"), body).await;
            assert!(matches!(response.status.as_u16(), 404 | 422), "{verb} {}", response.status);
        }
        assert_eq!(admin.get(&format!("/api/v1/jobs/{other}")).await.json()["state"], "queued");
        narrow.run("mine").await;
    })
    .await;
}

/// Requirement X7.
#[tokio::test]
async fn a_revoked_token_ends_its_long_poll() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let admin = api.caller(json!({"name": "root", "role": "admin"})).await;
        let made = admin.post("/api/v1/tokens", json!({"name": "v", "role": "viewer"})).await.json();
        let viewer = Caller { api: &api, token: made["token"].as_str().unwrap().to_owned() };
        let job = admin.job("q").await;
        let (path, revoke) =
            (format!("/api/v1/jobs/{job}?wait=60s"), format!("/api/v1/tokens/{}", made["id"].as_str().unwrap()));
        let (waited, revoked) = tokio::join!(viewer.get(&path), admin.delete(&revoke));
        assert_eq!(revoked.status, 204);
        waited.problem(401, "invalid_token", None);
    })
    .await;
}

/// Requirement X7.
#[tokio::test]
async fn an_anonymous_long_poll_ends_when_the_first_token_is_created() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let path = format!("/api/v1/jobs/{}?wait=60s", api.job("q").await);
        let first = json!({"name": "root", "role": "admin"});
        let (waited, made) = tokio::join!(api.get(&path), api.post("/api/v1/tokens", first));
        assert_eq!(made.status, 201);
        waited.problem(401, "token_required", None);
    })
    .await;
}

/// Requirement X7.
#[tokio::test]
async fn the_openapi_document_lists_the_rights_of_each_route() {
    let api = Api::new(Database::sqlite().await).await;
    let document = api.get("/openapi.json").await.json();
    assert_eq!(document["components"]["securitySchemes"]["token"]["scheme"], "bearer");
    let jobs = &document["paths"]["/api/v1/jobs"];
    assert_eq!(jobs["post"]["security"], json!([{"token": []}]));
    assert_eq!(jobs["post"]["x-rights"], json!(["enqueue"]));
    assert!(document["paths"]["/healthz"]["get"]["security"].is_null());
}
