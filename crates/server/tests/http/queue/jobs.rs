//! Jobs over HTTP.

use std::time::{Duration, Instant};

use axum::body::Body;
use futures_util::future::join_all;
use serde_json::{Value, json};
use testkit::on_both;

use crate::api::{Api, json_request, members, request};

/// Requirement Q3.
#[tokio::test]
async fn an_accepted_job_returns_its_id_and_reads_back_completely() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let sent = json!({
            "queue": "scan", "kind": "image.scan", "payload": {"image": "nginx", "deep": [1, 2.50, null]},
            "affinity": "llama3 70B", "priority": 7, "subject": "m-7", "process": "patch", "run": "nightly",
            "unique_key": "nginx", "unique_for_s": 60, "concurrency_key": "registry", "max_attempts": 5,
            "retry": {"initial_s": 60, "exponent": 1.1, "maximum_s": 120, "jitter": 0.5}, "timeout_s": 30,
            "tags": ["a", "größe"], "webhook": {"url": "https://example.com/hook?x=1", "secret": "whsec_aGVsbG8="},
        });
        let response = api.post("/api/v1/jobs", sent).await;
        assert_eq!(response.status, 202);
        let accepted = response.json();
        assert_eq!(members(&accepted), ["created_at", "id", "kind", "queue", "run_at", "state"]);
        assert_eq!(accepted["state"], "queued");

        let job = api.get(&format!("/api/v1/jobs/{}", accepted["id"].as_str().unwrap())).await.json();
        let expected = json!({
            "id": accepted["id"], "queue": "scan", "kind": "image.scan", "state": "queued",
            "payload": {"image": "nginx", "deep": [1, 2.50, null]}, "affinity": "llama3 70B", "priority": 7,
            "run_at": accepted["run_at"], "subject": "m-7", "process": "patch", "run": "nightly",
            "unique_key": "nginx", "concurrency_key": "registry", "attempt": 0, "max_attempts": 5,
            "retry": {"initial_s": 60, "maximum_s": 120, "exponent": 1.1, "jitter": 0.5}, "timeout_s": 30,
            "tags": ["a", "größe"], "phase": null, "progress": null, "result": null, "error": null, "worker": null,
            "epoch": 0, "created_at": accepted["created_at"], "updated_at": accepted["created_at"],
            "started_at": null, "finished_at": null, "parent": null, "retried_as": null, "principal": "local",
            "triggered_by": "api", "depth": 0, "webhook_url": "https://example.com/hook?x=1", "artifacts": [],
        });
        assert_eq!(job, expected);
    })
    .await;
}

#[tokio::test]
async fn a_payload_round_trips_byte_for_byte() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let odd = r#"{"nul": "a\u0000b", "pair": "\ud83d\ude00", "big": 123456789012345678901234567890, "e": 1e400, "é": "💥", "same": 1, "same": 2}"#;
        let body = format!(r#"{{"queue": "q", "kind": "k", "payload": {odd}}}"#);
        let sent = request("POST", "/api/v1/jobs").header("content-type", "application/json; charset=utf-8");
        let response = api.send(sent.body(Body::from(body)).unwrap()).await;
        assert_eq!(response.status, 202, "{:?}", response.body);
        let id = response.json()["id"].as_str().unwrap().to_owned();
        let job = api.get(&format!("/api/v1/jobs/{id}")).await;
        assert!(String::from_utf8_lossy(&job.body).contains(odd), "{:?}", job.body);

        let worker = api.worker("q").await;
        let claimed = api.post(&format!("/api/v1/workers/{worker}/claim"), json!({"max": 1})).await;
        assert!(String::from_utf8_lossy(&claimed.body).contains(odd));
        assert_eq!(api.get("/api/v1/jobs?text=anything").await.status, 200);

        // A lone surrogate is not valid Unicode, so strict JSON parsers could not read a listing that contains it.
        let lone = r#"{"queue": "q", "kind": "k", "payload": ["\ud800"]}"#;
        let sent = request("POST", "/api/v1/jobs").header("content-type", "application/json");
        api.send(sent.body(Body::from(lone)).unwrap()).await.problem(400, "invalid_json", None);
    })
    .await;
}

/// Requirement Q3.
#[tokio::test]
async fn sixty_four_concurrent_requests_with_one_idempotency_key_create_one_job() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let send = |body: Value| {
            let mut request = json_request("POST", "/api/v1/jobs", &body);
            request.headers_mut().insert("idempotency-key", "once-7".parse().unwrap());
            api.send(request)
        };
        let job = json!({"queue": "q", "kind": "k"});
        let responses = join_all((0..64).map(|_| send(job.clone()))).await;
        let mut bodies: Vec<_> = responses.iter().map(|response| response.body.clone()).collect();
        bodies.dedup();
        assert_eq!(bodies.len(), 1, "all responses have the same body");
        assert_eq!(responses.iter().filter(|response| response.status == 202).count(), 1);
        assert_eq!(responses.iter().filter(|response| response.status == 200).count(), 63);
        assert_eq!(api.job_count().await, 1);
        send(json!({"queue": "q", "kind": "other"})).await.problem(
            422,
            "idempotency_key_reused",
            Some("Idempotency-Key"),
        );
    })
    .await;
}

/// Requirement Q3.
#[tokio::test]
async fn idempotency_keys_are_scoped_to_the_token() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let admin = api.caller(json!({"name": "a", "role": "admin"})).await;
        let (one, other) = (
            api.caller(json!({"name": "one", "role": "producer"})).await,
            api.caller(json!({"name": "other", "role": "producer"})).await,
        );
        let mut ids = Vec::new();
        for caller in [&one, &other, &one] {
            let mut request = json_request("POST", "/api/v1/jobs", &json!({"queue": "q", "kind": "k"}));
            request.headers_mut().insert("idempotency-key", "once".parse().unwrap());
            ids.push(caller.send(request).await.json()["id"].clone());
        }
        assert_eq!(ids[0], ids[2]);
        assert_ne!(ids[0], ids[1]);
        assert_eq!(admin.get("/api/v1/jobs").await.json()["items"].as_array().unwrap().len(), 2);
    })
    .await;
}

/// Requirement Q4.
#[tokio::test]
async fn a_batch_is_atomic_and_idempotent() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let batch = json!({"jobs": [{"queue": "q", "kind": "a"}, {"queue": "q", "kind": "b"}]});
        let send = || {
            let mut request = json_request("POST", "/api/v1/jobs/batch", &batch);
            request.headers_mut().insert("idempotency-key", "batch".parse().unwrap());
            api.send(request)
        };
        let first = send().await;
        assert_eq!((first.status.as_u16(), first.json()["ids"].as_array().unwrap().len()), (202, 2));
        let again = send().await;
        assert_eq!((again.status.as_u16(), again.json()), (200, first.json()));

        let bad = json!({"jobs": [{"queue": "q", "kind": "a"}, {"queue": "q q", "kind": "b"}]});
        api.post("/api/v1/jobs/batch", bad).await.problem(422, "invalid_field", Some("jobs[1].queue"));
        assert_eq!(api.job_count().await, 2);
    })
    .await;
}

/// Requirement Q3.
#[tokio::test]
async fn a_unique_job_is_deduplicated_until_it_is_canceled() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let by_payload = json!({"queue": "q", "kind": "k", "payload": {"a": 1}, "unique_by": ["payload", "kind"]});
        let first = api.post("/api/v1/jobs", by_payload.clone()).await;
        let spaced = r#"{"queue": "q", "kind": "k", "payload": { "a" : 1 }, "unique_by": ["kind", "payload"]}"#;
        let sent = request("POST", "/api/v1/jobs").header("content-type", "application/cloudevents+json");
        let again = api.send(sent.body(Body::from(spaced)).unwrap()).await;
        assert_eq!((first.status.as_u16(), again.status.as_u16()), (202, 200));
        assert_eq!(first.json(), again.json());
        let other = json!({"queue": "q", "kind": "k", "payload": {"a": 2}, "unique_by": ["payload", "kind"]});
        assert_eq!(api.post("/api/v1/jobs", other).await.status, 202);
        let ordered = |payload: &str| {
            let body = format!(r#"{{"queue": "q", "kind": "k", "payload": {payload}, "unique_by": ["payload"]}}"#);
            request("POST", "/api/v1/jobs").header("content-type", "application/json").body(Body::from(body)).unwrap()
        };
        let one = api.send(ordered(r#"{"a": {"c": [1, 2], "d": 2}, "b": 2}"#)).await;
        let other = api.send(ordered(r#"{"b": 2, "a": {"d": 2, "c": [1, 2]}}"#)).await;
        assert_eq!((one.status.as_u16(), other.status.as_u16()), (202, 200));
        assert_eq!(one.json(), other.json(), "the order of members makes no difference");
        assert_eq!(api.send(ordered(r#"{"b": 2, "a": {"d": 2, "c": [2, 1]}}"#)).await.status, 202);

        let keyed = api.post("/api/v1/jobs", json!({"queue": "q", "kind": "k", "unique_key": "one"})).await;
        let cancel = || api.post("/api/v1/jobs/cancel", json!({"queue": "q", "unique_key": "one"}));
        assert_eq!(cancel().await.json(), json!({"id": keyed.json()["id"], "state": "canceled"}));
        cancel().await.problem(404, "not_found", None);
    })
    .await;
}

/// Requirement Q5.
#[tokio::test]
async fn a_long_poll_returns_as_soon_as_the_job_ends() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let (job, worker, epoch) = api.claimed("q").await;
        let started = Instant::now();
        let path = format!("/api/v1/jobs/{job}?wait=60s");
        let finish = async {
            // Real time, because a waiting long poll cannot be observed. A job that ends earlier needs no wake-up.
            tokio::time::sleep(Duration::from_millis(100)).await;
            let outcome = json!({"job_id": job, "epoch": epoch, "outcome": "finish", "result": {"ok": true}});
            api.settle(&worker, outcome).await
        };
        let (response, settled) = tokio::join!(api.get(&path), finish);
        assert_eq!(settled.json(), json!({"results": [{"job_id": job, "status": "applied"}]}));
        assert_eq!(
            (response.json()["state"].clone(), response.json()["result"].clone()),
            (json!("succeeded"), json!({"ok": true}))
        );
        assert!(started.elapsed() < Duration::from_secs(60), "the poll returns before its timeout");
        let waiting = api.job("q").await;
        let short = api.get(&format!("/api/v1/jobs/{waiting}?wait=50ms")).await;
        assert_eq!(short.json()["state"], "queued", "the timeout of the poll has passed");
    })
    .await;
}

/// Requirement Q11.
#[tokio::test]
async fn cancel_is_idempotent_and_rejected_for_a_job_that_ended_otherwise() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let waiting = api.job("q").await;
        for _ in 0..2 {
            let response = api.call("POST", &format!("/api/v1/jobs/{waiting}/cancel")).await;
            assert_eq!((response.status.as_u16(), response.json()), (200, json!({"id": waiting, "state": "canceled"})));
        }
        let (job, worker, epoch) = api.claimed("q").await;
        api.settle(&worker, json!({"job_id": job, "epoch": epoch, "outcome": "finish"})).await;
        api.call("POST", &format!("/api/v1/jobs/{job}/cancel")).await.problem(409, "already_ended", None);
    })
    .await;
}

/// Requirement Q2.
#[tokio::test]
async fn a_retry_creates_one_new_job_linked_both_ways() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let (job, worker, epoch) = api.claimed("q").await;
        let retry = async |body: Value| api.post(&format!("/api/v1/jobs/{job}/retry"), body).await;
        retry(json!({})).await.problem(409, "not_ended", None);
        let error = json!({"code": "boom", "message": "it broke", "retryable": false});
        api.settle(&worker, json!({"job_id": job, "epoch": epoch, "outcome": "fail", "error": error})).await;
        let made = retry(json!({"payload": {"n": 2}})).await;
        assert_eq!(made.status, 202);
        assert_eq!(members(&made.json()), ["created_at", "id", "kind", "queue", "run_at", "state"]);
        let again = api.call("POST", &format!("/api/v1/jobs/{job}/retry")).await;
        assert_eq!((again.status.as_u16(), again.json()), (200, made.json()));
        assert_eq!(retry(json!({"payload": {"n": 2}})).await.json(), made.json(), "the same payload is a repetition");
        let edited = retry(json!({"payload": {"n": 3}})).await;
        edited.problem(409, "already_retried", None);
        let id = made.json()["id"].as_str().unwrap().to_owned();
        assert!(edited.json()["detail"].as_str().unwrap().contains(&format!("already retried as job {id}")));

        let old = api.get(&format!("/api/v1/jobs/{job}")).await.json();
        assert_eq!((&old["retried_as"], &old["error"]), (&made.json()["id"], &error));
        let new = api.get(&format!("/api/v1/jobs/{}", made.json()["id"].as_str().unwrap())).await.json();
        assert_eq!((&new["parent"], &new["payload"]), (&json!(job), &json!({"n": 2})));
    })
    .await;
}

/// Requirement X5.
#[tokio::test]
async fn history_and_why_have_the_documented_shape() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let (job, worker, epoch) = api.claimed("q").await;
        let why = async |job: &str| api.get(&format!("/api/v1/jobs/{job}/why")).await;
        assert_eq!(why(&job).await.json(), json!({"reason": "running", "detail": "a worker is running it"}));
        api.settle(&worker, json!({"job_id": job, "epoch": epoch, "outcome": "finish"})).await;
        let history = api.get(&format!("/api/v1/jobs/{job}/history")).await.json();
        let events: Vec<_> = history["items"].as_array().unwrap().iter().map(|item| item["event"].clone()).collect();
        assert_eq!(events, ["enqueued", "started", "finished"]);
        let expected = ["actor", "at", "attempt", "cause", "epoch", "event", "worker"];
        assert_eq!(members(&history["items"][1]), expected);
        assert_eq!((&history["items"][1]["worker"], &history["next_cursor"]), (&json!(worker), &Value::Null));

        let later = json!({"queue": "q", "kind": "k", "run_at": "2030-01-01T00:00:00Z"});
        let later = api.post("/api/v1/jobs", later).await.json();
        assert_eq!((&later["state"], &later["run_at"]), (&json!("scheduled"), &json!("2030-01-01T00:00:00Z")));
        let not_due = why(later["id"].as_str().unwrap()).await.json();
        assert_eq!((&not_due["reason"], &not_due["until"]), (&json!("not_due"), &json!("2030-01-01T00:00:00Z")));
    })
    .await;
}

/// Requirement Q13.
#[tokio::test]
async fn job_listings_filter_and_page_newest_first() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let job =
            |n: usize| json!({"queue": format!("q{}", n % 2), "kind": "k", "tags": [format!("t{n}")], "run": "r 1"});
        let jobs: Vec<Value> = (0..7).map(job).collect();
        let ids = api.post("/api/v1/jobs/batch", json!({"jobs": jobs})).await.json()["ids"].clone();
        let mut expected: Vec<Value> = ids.as_array().unwrap().clone();
        expected.reverse();

        let mut listed: Vec<Value> = Vec::new();
        let mut path = "/api/v1/jobs?limit=3&run=r%201&state=queued&since=2020-01-01T00:00:00Z".to_owned();
        loop {
            let page = api.get(&path).await.json();
            listed.extend(page["items"].as_array().unwrap().iter().map(|job| job["id"].clone()));
            let Some(cursor) = page["next_cursor"].as_str() else { break };
            path = format!("/api/v1/jobs?limit=3&run=r%201&cursor={cursor}");
        }
        assert_eq!(listed, expected);
        for (query, count) in [
            ("queue=q0", 4),
            ("tag=t3", 1),
            ("text=t3", 1),
            ("state=failed", 0),
            ("until=2020-01-01T00:00:00Z", 0),
            ("kind=k", 7),
        ] {
            let page = api.get(&format!("/api/v1/jobs?{query}")).await.json();
            assert_eq!(page["items"].as_array().unwrap().len(), count, "{query}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_trace_context_comes_from_the_field_or_the_header_and_reaches_the_worker() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let trace = |number: u8| format!("00-4bf92f3577b34da6a3ce929d0e0e47{number:02x}-00f067aa0ba902b7-01");
        let push = async |field: Option<String>, header: &str| {
            let mut body = json!({"queue": "q", "kind": "k"});
            field.into_iter().for_each(|field| body["traceparent"] = field.into());
            let mut sent = json_request("POST", "/api/v1/jobs", &body);
            sent.headers_mut().insert("traceparent", header.parse().unwrap());
            api.send(sent).await
        };
        let id = |response: crate::api::Response| response.json()["id"].as_str().unwrap().to_owned();
        let by_header = id(push(None, &trace(1)).await);
        let by_field = id(push(Some(trace(2)), &trace(1)).await);
        let untraced = id(push(None, "not a trace").await);
        push(Some("not a trace".into()), &trace(1)).await.problem(422, "invalid_field", Some("traceparent"));
        let run = json!({"nodes": [{"name": "a", "queue": "q", "kind": "k"}]});
        let mut sent = json_request("POST", "/api/v1/runs", &run);
        sent.headers_mut().insert("traceparent", trace(3).parse().unwrap());
        let node = api.send(sent).await.json()["nodes"]["a"].as_str().unwrap().to_owned();
        let worker = api.worker("q").await;
        let claim = api.post(&format!("/api/v1/workers/{worker}/claim"), json!({"max": 10})).await.json();
        let claimed = claim["jobs"].as_array().unwrap();
        assert_eq!(claimed.len(), 4);
        for (id, expected) in [
            (by_header, json!(trace(1))),
            (by_field, json!(trace(2))),
            (untraced, Value::Null),
            (node, json!(trace(3))),
        ] {
            let job = claimed.iter().find(|job| job["id"] == json!(id)).unwrap();
            assert_eq!((&job["traceparent"], &job["inputs"]), (&expected, &Value::Null), "{id}");
            assert_eq!(api.get(&format!("/api/v1/jobs/{id}")).await.json()["traceparent"], expected);
        }
    })
    .await;
}

#[tokio::test]
async fn a_deadline_is_stored_and_an_invalid_one_is_refused() {
    on_both(async |db| {
        let api = Api::new(db).await;
        for bad in [json!(0), json!(-5), json!(400_000_000)] {
            let sent = api.post("/api/v1/jobs", json!({"queue": "q", "kind": "k", "deadline_s": bad})).await;
            sent.problem(422, "invalid_field", Some("deadline_s"));
        }
        let node = json!({"name": "a", "queue": "q", "kind": "k", "deadline_s": 0});
        let refused = api.post("/api/v1/runs", json!({"nodes": [node]})).await;
        refused.problem(422, "invalid_field", Some("nodes[0].deadline_s"));
        assert_eq!(api.job_count().await, 0);
        let sent = api.post("/api/v1/jobs", json!({"queue": "q", "kind": "k", "deadline_s": 60})).await.json();
        let job = api.get(&format!("/api/v1/jobs/{}", sent["id"].as_str().unwrap())).await.json();
        assert_eq!(job["deadline_s"], 60);
    })
    .await;
}
