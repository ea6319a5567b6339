//! X7, T12: what a token lets its bearer do over HTTP.

use axum::body::Body;
use axum::http::Request;
use domain::TenantId;
use serde_json::{Value, json};
use testkit::{Database, on_both};

use crate::api::{Answer, Api, in_time, json_request, request};

/// A server with tokens, and one caller of it.
pub(crate) struct Caller<'a> {
    pub(crate) api: &'a Api,
    pub(crate) token: String,
}

impl Api {
    /// Makes a token on the machine.
    pub(crate) async fn token(&self, request: Value) -> String {
        let request = serde_json::from_value(request).unwrap();
        server::machine::create_token(&self.db.store, request).await.unwrap().token
    }

    pub(crate) async fn caller(&self, request: Value) -> Caller<'_> {
        Caller { api: self, token: self.token(request).await }
    }
}

impl Caller<'_> {
    pub(crate) async fn ask(&self, mut request: Request<Body>) -> Answer {
        request.headers_mut().insert("authorization", format!("Bearer {}", self.token).parse().unwrap());
        self.api.ask(request).await
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

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.ask(request("DELETE", path).body(Body::empty()).unwrap()).await
    }

    /// The id of a new job with something in it.
    pub(crate) async fn job(&self, queue: &str) -> String {
        let answer = self.post("/api/v1/jobs", json!({"queue": queue, "kind": "k", "payload": {"secret": 7}})).await;
        assert_eq!(answer.status, 202, "{:?}", answer.body);
        answer.json()["id"].as_str().unwrap().to_owned()
    }

    /// Claims the one job that waits in the queue and finishes it with a result, an artifact and a log.
    pub(crate) async fn run(&self, queue: &str) {
        let worker = self.post("/api/v1/workers", json!({"name": "w", "queues": [queue]})).await.json();
        let worker = worker["id"].as_str().unwrap().to_owned();
        let claimed = self.post(&format!("/api/v1/workers/{worker}/claim"), json!({"max": 1})).await.json();
        let (job, epoch) = (claimed["jobs"][0]["id"].clone(), claimed["jobs"][0]["epoch"].clone());
        let job_id = job.as_str().unwrap();
        for name in ["log", "picture"] {
            let path = format!("/api/v1/jobs/{job_id}/artifacts/{name}");
            let put = request("PUT", &path).header("x-windlass-epoch", epoch.to_string()).body(Body::from("bytes"));
            assert_eq!(self.ask(put.unwrap()).await.status, 201);
        }
        let signal = json!({"epoch": epoch, "summary": "half", "payload": {"secret": 8}, "diagnostics": {"secret": 9}});
        assert_eq!(self.put(&format!("/api/v1/jobs/{job_id}/signal"), signal).await.status, 200);
        let outcome = json!({"job_id": job, "epoch": epoch, "outcome": "finish", "result": {"secret": 10}});
        let settled = self.post(&format!("/api/v1/workers/{worker}/settle"), json!({"outcomes": [outcome]})).await;
        assert_eq!(settled.json()["results"][0]["status"], "applied");
    }
}

#[tokio::test]
async fn x7_the_first_token_shuts_the_door_but_for_health() {
    on_both(async |db| {
        let api = Api::new(db).await;
        assert_eq!(api.get("/api/v1/jobs").await.status, 200);
        let admin = api.caller(json!({"name": "root", "role": "admin"})).await;
        for path in ["/api/v1/jobs", "/openapi.json", "/metrics", "/nowhere", "/api/v1/tokens"] {
            let answer = api.get(path).await;
            answer.problem(401, "token_required", None);
            assert!(answer.header("www-authenticate").starts_with("Bearer"));
        }
        api.post("/api/v1/jobs", json!({"queue": "q", "kind": "k"})).await.problem(401, "token_required", None);
        for path in ["/healthz", "/readyz"] {
            assert_eq!(api.get(path).await.status, 200);
        }
        assert_eq!(admin.get("/api/v1/jobs").await.json()["items"], json!([]));
        admin.get("/nowhere").await.problem(404, "no_such_route", None);
        for bad in ["", "x", "windlass_", &format!("{}x", admin.token), &admin.token.to_lowercase()] {
            let stranger = Caller { api: &api, token: bad.to_owned() };
            stranger.get("/api/v1/jobs").await.problem(401, "invalid_token", None);
        }
        let basic = request("GET", "/api/v1/jobs").header("authorization", format!("Basic {}", admin.token));
        api.ask(basic.body(Body::empty()).unwrap()).await.problem(401, "invalid_token", None);
        // Whoever has a token may call the server what they like.
        let elsewhere = Request::get("/api/v1/jobs").header("host", "windlass.example");
        assert_eq!(admin.ask(elsewhere.body(Body::empty()).unwrap()).await.status, 200);
    })
    .await;
}

#[tokio::test]
async fn x7_whoever_makes_the_first_token_over_http_is_told_its_text() {
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

#[tokio::test]
async fn x7_of_two_who_make_the_first_token_at_once_one_is_told() {
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

#[tokio::test]
async fn x7_tokens_are_made_listed_and_revoked_over_http() {
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
        assert!(!String::from_utf8_lossy(&listed.body).contains("windlass_"), "a text is shown once");
        let path = format!("/api/v1/tokens/{}", made["id"].as_str().unwrap());
        assert_eq!(admin.delete(&path).await.status, 204);
        ci.get("/api/v1/jobs").await.problem(401, "invalid_token", None);
        assert_eq!(admin.delete(&path).await.status, 204, "twice is once");
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

#[tokio::test]
async fn x7_what_is_in_a_job_needs_rights_of_its_own() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let producer = api.caller(json!({"name": "shop", "role": "producer"})).await;
        let worker = api.caller(json!({"name": "machine", "role": "worker"})).await;
        let viewer = api.caller(json!({"name": "eye", "role": "viewer"})).await;
        let job = producer.job("q").await;
        let path = format!("/api/v1/jobs/{job}");
        // A long-poll that began before the result was there shows no more than a look.
        let waiting_path = format!("{path}?wait=60s");
        let waiting = async {
            loop {
                let answer = viewer.get(&waiting_path).await;
                if answer.json()["state"] == "succeeded" {
                    break answer;
                }
            }
        };
        let (waited, ()) = tokio::join!(in_time(waiting), worker.run("q"));
        for answer in [waited, viewer.get(&path).await] {
            let seen = answer.json();
            assert_eq!(
                (seen["state"].as_str(), &seen["payload"], &seen["result"]),
                (Some("succeeded"), &Value::Null, &Value::Null)
            );
            assert_eq!(seen["redacted"], json!(["payload", "result", "error.message"]));
            assert!(!String::from_utf8_lossy(&answer.body).contains("secret"));
        }
        for part in ["", "/signal", "/history", "/artifacts", "/why"] {
            let answer = viewer.get(&format!("{path}{part}")).await;
            assert_eq!(answer.status, 200, "{part}");
            assert!(!String::from_utf8_lossy(&answer.body).contains("secret"), "{part}");
        }
        for found in ["/api/v1/jobs?text=secret", "/api/v1/jobs?text=7"] {
            assert_eq!(viewer.get(found).await.json()["items"], json!([]), "a search would tell what is inside");
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

#[tokio::test]
async fn x7_a_producer_knows_of_its_own_jobs_only() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let shop = api.caller(json!({"name": "shop", "role": "producer"})).await;
        let bank = api.caller(json!({"name": "bank", "role": "producer"})).await;
        let job = shop.job("q").await;
        let nobody = "00000000-0000-7000-8000-000000000000";
        for part in ["", "?wait=5s", "/signal", "/history", "/artifacts", "/why", "/artifacts/log"] {
            let there = bank.get(&format!("/api/v1/jobs/{job}{part}")).await;
            let nowhere = bank.get(&format!("/api/v1/jobs/{nobody}{part}")).await;
            assert_eq!((there.status.as_u16(), &there.body), (404, &nowhere.body), "{part}");
        }
        assert_eq!(bank.get("/api/v1/jobs").await.json()["items"], json!([]));
        assert_eq!(shop.get("/api/v1/jobs").await.json()["items"][0]["id"], job.as_str());
        // A token of the same name takes over.
        let again = api.caller(json!({"name": "shop", "role": "producer"})).await;
        assert_eq!(again.get(&format!("/api/v1/jobs/{job}")).await.status, 200);
    })
    .await;
}

#[tokio::test]
async fn x7_a_token_narrowed_to_queues_reaches_no_other() {
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
            ("POST", "/api/v1/workers".into(), json!({"name": "w", "queues": ["mine", "other"]})),
            ("PUT", "/api/v1/queues/other".into(), json!({})),
            ("POST", "/api/v1/queues/other/pause".into(), json!({})),
            ("POST", "/api/v1/queues/other/resume".into(), json!({})),
            ("GET", "/api/v1/queues/other".into(), Value::Null),
            ("GET", "/api/v1/workers".into(), Value::Null),
            ("POST", "/api/v1/tokens".into(), json!({"name": "x", "role": "viewer", "queues": ["mine"]})),
        ] {
            let answer = narrow.ask(json_request(method, &path, &body)).await;
            assert_eq!(answer.status, 403, "{method} {path}");
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
            let answer = narrow.post(&format!("/api/v1/workers/{wide}/{verb}"), body).await;
            assert!(matches!(answer.status.as_u16(), 404 | 422), "{verb} {}", answer.status);
        }
        assert_eq!(admin.get(&format!("/api/v1/jobs/{other}")).await.json()["state"], "queued");
        narrow.run("mine").await;
    })
    .await;
}

#[tokio::test]
async fn x7_a_long_poll_ends_with_its_token() {
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

#[tokio::test]
async fn x7_who_waits_without_a_token_when_the_first_is_made_is_told_to_bring_one() {
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

#[tokio::test]
async fn x7_the_document_says_what_each_route_needs() {
    let api = Api::new(Database::sqlite().await).await;
    let document = api.get("/openapi.json").await.json();
    assert_eq!(document["components"]["securitySchemes"]["token"]["scheme"], "bearer");
    let jobs = &document["paths"]["/api/v1/jobs"];
    assert_eq!(jobs["post"]["security"], json!([{"token": []}]));
    assert_eq!(jobs["post"]["x-rights"], json!(["enqueue"]));
    assert!(document["paths"]["/healthz"]["get"]["security"].is_null());
}
