//! Invalid input is rejected with a problem document that names the field, and never causes a 500.

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};
use testkit::on_both;

use crate::api::{Api, json_request, request};

fn raw(method: &str, path: &str, content_type: Option<&str>, body: impl Into<Body>) -> Request<Body> {
    let mut builder = request(method, path);
    if let Some(content_type) = content_type {
        builder = builder.header("content-type", content_type);
    }
    builder.body(body.into()).unwrap()
}

const JSON: Option<&str> = Some("application/json");
const JOBS: &str = "/api/v1/jobs";

/// Requirement X10.
#[tokio::test]
async fn an_unreadable_body_is_rejected() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let check = async |request, status, code, field| api.send(request).await.problem(status, code, field);
        let good = r#"{"queue":"q","kind":"k"}"#;
        for content_type in
            [None, Some("text/plain"), Some("application/x-www-form-urlencoded"), Some("application/jsonp")]
        {
            check(raw("POST", JOBS, content_type, good), 415, "unsupported_media_type", None).await;
        }
        let mut compressed = raw("POST", JOBS, JSON, good);
        compressed.headers_mut().insert("content-encoding", "gzip".parse().unwrap());
        check(compressed, 415, "unsupported_media_type", None).await;
        for body in [
            "",
            "{",
            "nonsense",
            "[1",
            r#"{"queue":"q","kind":"k"} trailing"#,
            r#"{"queue":"q","kind":"k","payload":{"a":tru}}"#,
            "\u{feff}{}",
        ] {
            check(raw("POST", JOBS, JSON, body), 400, "invalid_json", None).await;
        }
        check(raw("POST", JOBS, JSON, &b"{\"queue\":\"\xff\",\"kind\":\"k\"}"[..]), 400, "invalid_json", None).await;
        let invalid_payload = &b"{\"queue\":\"q\",\"kind\":\"k\",\"payload\":\"\xed\xa0\x80\"}"[..];
        check(raw("POST", JOBS, JSON, invalid_payload), 400, "invalid_json", None).await;
        let deep = format!(r#"{{"queue":"q","kind":"k","payload":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
        check(raw("POST", JOBS, JSON, deep), 400, "invalid_json", None).await;
        let huge = format!(r#"{{"queue":"q","kind":"k","payload":"{}"}}"#, "x".repeat(17 << 20));
        check(raw("POST", JOBS, JSON, huge), 413, "body_too_large", None).await;
        let large = json!({"queue": "q", "kind": "k", "payload": "x".repeat(1 << 20)});
        check(json_request("POST", JOBS, &large), 422, "invalid_field", Some("payload")).await;
        let twice = r#"{"queue":"q","kind":"k","kind":"l"}"#;
        check(raw("POST", JOBS, JSON, twice), 400, "invalid_json", Some("kind")).await;
        assert_eq!(api.job_count().await, 0, "nothing was stored");
    })
    .await;
}

/// Requirement R3.
#[tokio::test]
async fn the_operations_queue_is_reserved() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let own = "windlass.runtimes";
        let job = json!({"queue": own, "kind": "k"});
        api.post(JOBS, job.clone()).await.problem(422, "invalid_field", Some("queue"));
        api.post("/api/v1/calls", job.clone()).await.problem(422, "invalid_field", Some("queue"));
        let many = json!({"jobs": [{"queue": "q", "kind": "k"}, job]});
        api.post("/api/v1/jobs/batch", many).await.problem(422, "invalid_field", Some("jobs[1].queue"));
        let worker = json!({"name": "w", "queues": ["q", own]});
        api.post("/api/v1/workers", worker).await.problem(422, "invalid_field", Some("queues[1]"));
        let process = json!({"selector": {"all": [{"fact": "f", "exists": true}]}, "queue": own, "kind": "k"});
        api.put("/api/v1/processes/p", process).await.problem(422, "invalid_field", Some("queue"));
        assert_eq!(api.job_count().await, 0, "nothing was stored");
    })
    .await;
}

/// Requirement R3.
#[tokio::test]
async fn runtime_subjects_are_reserved() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let own = "runtime/model";
        let job = json!({"queue": "q", "kind": "operation", "subject": own});
        api.post(JOBS, job.clone()).await.problem(422, "invalid_field", Some("subject"));
        api.post("/api/v1/calls", job.clone()).await.problem(422, "invalid_field", Some("subject"));
        let many = json!({"jobs": [{"queue": "q", "kind": "k"}, job]});
        api.post("/api/v1/jobs/batch", many).await.problem(422, "invalid_field", Some("jobs[1].subject"));
        let trigger = json!({"name": "t", "source": "pubsub", "filter": {"topic": "*"}, "target": {"job": job}});
        api.post("/api/v1/triggers", trigger).await.problem(422, "invalid_field", Some("target.job.subject"));
        assert_eq!(api.job_count().await, 0, "nothing was stored");
        // The subject belongs to the runtime while the runtime is declared.
        let declared = api.put("/api/v1/runtimes/model", json!({"image": "model:1.0.0"})).await;
        assert_eq!(declared.status, 200, "{:?}", declared.body);
        let subject = "/api/v1/subjects/runtime%2Fmodel";
        api.call("DELETE", subject).await.problem(409, "subject_busy", None);
        assert_eq!(api.call("DELETE", "/api/v1/runtimes/model").await.status, 204);
        assert_eq!(api.call("DELETE", subject).await.status, 204);
    })
    .await;
}

/// Requirement X10.
#[tokio::test]
async fn an_invalid_job_field_is_named() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let cases: Vec<(Value, &str)> = vec![
            (json!({"kind": "k"}), "queue"),
            (json!({"queue": "q"}), "kind"),
            (json!({"queue": 7}), "queue"),
            (json!({"queue": "q", "kind": null}), "kind"),
            (json!({"quue": "q"}), "quue"),
            (json!({"queue": ""}), "queue"),
            (json!({"queue": "a b"}), "queue"),
            (json!({"queue": "nul\u{0}"}), "queue"),
            (json!({"queue": "größe"}), "queue"),
            (json!({"queue": "x".repeat(129)}), "queue"),
            (json!({"kind": "<script>"}), "kind"),
            (json!({"affinity": ""}), "affinity"),
            (json!({"affinity": "a\u{202e}b"}), "affinity"),
            (json!({"subject": "nul\u{0}"}), "subject"),
            (json!({"subject": "x".repeat(257)}), "subject"),
            (json!({"process": "*", "subject": "s"}), "process"),
            (json!({"process": "scrub"}), "process"),
            (json!({"run": " padded"}), "run"),
            (json!({"concurrency_key": "\u{feff}"}), "concurrency_key"),
            (json!({"unique_key": "\n"}), "unique_key"),
            (json!({"unique_key": "a", "unique_by": ["kind"]}), "unique_by"),
            (json!({"unique_by": []}), "unique_by"),
            (json!({"unique_by": ["queue"]}), "unique_by"),
            (json!({"unique_for_s": 5}), "unique_for_s"),
            (json!({"unique_key": "a", "unique_for_s": 0}), "unique_for_s"),
            (json!({"unique_key": "a", "unique_for_s": i64::MAX}), "unique_for_s"),
            (json!({"priority": 40_000}), "priority"),
            (json!({"priority": 1.5}), "priority"),
            (json!({"priority": u64::MAX}), "priority"),
            (json!({"max_attempts": 0}), "max_attempts"),
            (json!({"max_attempts": 1_001}), "max_attempts"),
            (json!({"timeout_s": 0}), "timeout_s"),
            (json!({"timeout_s": i64::MAX}), "timeout_s"),
            (json!({"run_at": "tomorrow"}), "run_at"),
            (json!({"run_at": 12}), "run_at"),
            (json!({"run_at": "9999-01-01T00:00:00Z"}), "run_at"),
            (json!({"run_at": "-009999-01-02T01:59:59Z"}), "run_at"),
            (json!({"run_at": "1969-12-31T23:59:59Z"}), "run_at"),
            (json!({"retry": {"initial_s": -1}}), "retry.initial_s"),
            (json!({"retry": {"exponent": 0.5}}), "retry.exponent"),
            (json!({"retry": {"jitter": 2}}), "retry.jitter"),
            (json!({"retry": {"maximum_s": u64::MAX}}), "retry.maximum_s"),
            (json!({"retry": {"initial": 1}}), "retry.initial"),
            (json!({"tags": ["ok", "a\u{0}"]}), "tags[1]"),
            (json!({"tags": vec!["t"; 33]}), "tags"),
            (json!({"tags": "t"}), "tags"),
            (json!({"webhook": {"url": "ftp://example.com"}}), "webhook.url"),
            (json!({"webhook": {"url": "/relative"}}), "webhook.url"),
            (json!({"webhook": {"url": "https://example.com", "secret": "hunter2"}}), "webhook.secret"),
            (json!({"webhook": {}}), "webhook.url"),
            (json!({"retry": []}), "retry"),
            (json!({"retry": [1, 2, 1, 0]}), "retry"),
            (json!({"webhook": ["https://example.com"]}), "webhook"),
        ];
        for (members, field) in cases {
            let is_complete = members.get("queue").is_some() || field == "queue" || field == "quue";
            let mut body = if is_complete { json!({}) } else { json!({"queue": "q"}) };
            if field != "kind" {
                body["kind"] = json!("k");
            }
            body.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
            println!("{body}");
            api.post(JOBS, body.clone()).await.problem(422, "invalid_field", Some(field));
            let batch = json!({"jobs": [{"queue": "q", "kind": "k"}, body]});
            let in_batch = format!("jobs[1].{field}");
            api.post("/api/v1/jobs/batch", batch).await.problem(422, "invalid_field", Some(&in_batch));
        }
        api.post("/api/v1/jobs/batch", json!({"jobs": []})).await.problem(422, "invalid_field", Some("jobs"));
        let many = json!({"jobs": vec![json!({"queue": "q", "kind": "k"}); 10_001]});
        api.post("/api/v1/jobs/batch", many).await.problem(422, "invalid_field", Some("jobs"));
        api.post(JOBS, json!([1])).await.problem(422, "invalid_field", None);
        api.post("/api/v1/jobs/batch", json!({"jobs": [["q", "k"]]})).await.problem(
            422,
            "invalid_field",
            Some("jobs[0]"),
        );
        assert_eq!(api.job_count().await, 0, "nothing was stored");
    })
    .await;
}

/// Requirement X10.
#[tokio::test]
async fn invalid_queries_cursors_ids_and_headers_are_rejected() {
    on_both(async |db| {
        let api = Api::new(db).await;
        for (query, field) in [
            ("limit=0", "limit"),
            ("limit=501", "limit"),
            ("limit=-1", "limit"),
            ("limit=many", "limit"),
            ("limit=99999999999999999999", "limit"),
            ("state=done", "state"),
            ("queue=a%20b", "queue"),
            ("queue=", "queue"),
            ("tag=%00", "tag"),
            ("subject=a%E2%80%AEb", "subject"),
            ("text=%00", "text"),
            ("text=", "text"),
            ("since=yesterday", "since"),
            ("until=2026-13-01T00:00:00Z", "until"),
            ("colour=red", "colour"),
        ] {
            println!("{query}");
            api.get(&format!("{JOBS}?{query}")).await.problem(400, "invalid_query", Some(field));
        }
        api.get(&format!("{JOBS}?limit=1&limit=2")).await.problem(400, "invalid_query", Some("limit"));
        for cursor in ["x", "AAAA", "%00", "..%2F..", "AWoAAA", &"A".repeat(5_000)] {
            for listing in ["jobs", "queues", "workers"] {
                let path = format!("/api/v1/{listing}?cursor={cursor}");
                api.get(&path).await.problem(400, "invalid_cursor", Some("cursor"));
            }
        }
        // Times outside PostgreSQL's range.
        for times in ["since=-009999-01-02T01:59:59Z", "until=-009999-01-02T01:59:59Z", "since=9999-12-30T22:00:00Z"] {
            assert_eq!(api.get(&format!("{JOBS}?{times}")).await.status, 200, "{times}");
        }
        // A cursor of the token listing.
        let other = "AXgAAAAAAAAAAAAAAAAAAAAA";
        api.get(&format!("/api/v1/triggers?cursor={other}")).await.problem(400, "invalid_cursor", Some("cursor"));
        // A cursor of the failure listing with the largest 64-bit time.
        let never = "AWZ__________wAAAAAAAAAAAAAAAAAAAAA";
        api.get(&format!("/api/v1/failures?cursor={never}")).await.problem(400, "invalid_cursor", Some("cursor"));
        for id in ["7", "not-an-id", "00000000-0000-0000-0000-000000000000", "%00", "%FF", "💥".repeat(50).as_str()] {
            let id: String =
                id.chars().map(|c| if c.is_ascii() { c.to_string() } else { "%F0%9F%92%A5".into() }).collect();
            for path in ["", "/history", "/why", "/signal", "/artifacts"] {
                api.get(&format!("{JOBS}/{id}{path}")).await.problem(404, "not_found", None);
            }
            api.call("POST", &format!("{JOBS}/{id}/cancel")).await.problem(404, "not_found", None);
            api.call("POST", &format!("{JOBS}/{id}/retry")).await.problem(404, "not_found", None);
            api.call("DELETE", &format!("/api/v1/workers/{id}")).await.problem(404, "not_found", None);
        }
        let job = api.job("q").await;
        for wait in ["soon", "-1s", "1e999", "NaN"] {
            api.get(&format!("{JOBS}/{job}?wait={wait}")).await.problem(400, "invalid_query", Some("wait"));
        }
        for key in ["", "with space", &"k".repeat(256)] {
            let mut request = json_request("POST", JOBS, &json!({"queue": "q", "kind": "k"}));
            request.headers_mut().insert("idempotency-key", key.parse().unwrap());
            api.send(request).await.problem(400, "invalid_header", Some("Idempotency-Key"));
        }
    })
    .await;
}

/// Requirement X10.
#[tokio::test]
async fn invalid_queue_and_worker_settings_name_the_field() {
    on_both(async |db| {
        let api = Api::new(db).await;
        for (settings, field) in [
            (json!({"concurrency": 0}), "concurrency"),
            (json!({"concurrency": "4"}), "concurrency"),
            (json!({"per_key": -1}), "per_key"),
            (json!({"rate_per_s": 0}), "rate_per_s"),
            (json!({"rate_per_s": 1e300}), "rate_per_s"),
            (json!({"starvation_s": -1}), "starvation_s"),
            (json!({"timeout_s": 0}), "timeout_s"),
            (json!({"retention_s": -1}), "retention_s"),
            (json!({"retry": {"exponent": 0}}), "retry.exponent"),
            (json!({"phases": ["a b"]}), "phases[0]"),
            (json!({"kinds": {"a b": {}}}), "kinds.a b"),
            (json!({"kinds": {"k": {"timeout_s": 0}}}), "kinds.k.timeout_s"),
            (json!({"webhook": {"url": "https://user:pass@example.com"}}), "webhook.url"),
            (json!({"webhook": {"url": "https://example.com", "secrets": ["whsec_YQ==", "no"]}}), "webhook.secrets[1]"),
            (json!({"limit": 1}), "limit"),
        ] {
            api.put("/api/v1/queues/q", settings).await.problem(422, "invalid_field", Some(field));
        }
        api.get("/api/v1/queues/q").await.problem(404, "not_found", None);
        for name in ["a%20b", "%00", "%FF"] {
            api.get(&format!("/api/v1/queues/{name}")).await.problem(422, "invalid_field", Some("name"));
        }
        let pause = api.post("/api/v1/queues/q/pause", json!({"reason": "a\u{0}b"})).await;
        pause.problem(422, "invalid_field", Some("reason"));

        for (worker, field) in [
            (json!({"queues": ["q"]}), "name"),
            (json!({"name": "", "queues": ["q"]}), "name"),
            (json!({"name": "w\u{0}", "queues": ["q"]}), "name"),
            (json!({"name": "w", "queues": []}), "queues"),
            (json!({"name": "w", "queues": ["q", "a b"]}), "queues[1]"),
            (json!({"name": "w", "queues": vec!["q"; 101]}), "queues"),
            (json!({"name": "w", "queues": ["q"], "kinds": [""]}), "kinds[0]"),
            (json!({"name": "w", "queues": ["q"], "affinities": ["\u{0}"]}), "affinities[0]"),
            (json!({"name": "w", "queues": ["q"], "lease_s": 0}), "lease_s"),
            (json!({"name": "w", "queues": ["q"], "lease_s": 3601}), "lease_s"),
        ] {
            api.post("/api/v1/workers", worker).await.problem(422, "invalid_field", Some(field));
        }
        let worker = api.worker("q").await;
        for (claim, field) in [
            (json!({}), "max"),
            (json!({"max": 0}), "max"),
            (json!({"max": 2001}), "max"),
            (json!({"max": 1, "wait_s": -1}), "wait_s"),
            (json!({"max": 1, "affinity": "\u{0}"}), "affinity"),
        ] {
            api.post(&format!("/api/v1/workers/{worker}/claim"), claim).await.problem(
                422,
                "invalid_field",
                Some(field),
            );
        }
        let many = json!({"outcomes": vec![json!({"job_id": worker, "epoch": 1, "outcome": "cancel"}); 4_001]});
        let settle = api.post(&format!("/api/v1/workers/{worker}/settle"), many).await;
        settle.problem(422, "invalid_field", Some("outcomes"));
    })
    .await;
}

/// Requirement X10.
#[tokio::test]
async fn a_number_beyond_a_double_is_rejected_with_its_field() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let send = async |method: &str, path: &str, body: &'static str| {
            let request = request(method, path).header("content-type", "application/json");
            api.send(request.body(Body::from(body)).unwrap()).await
        };
        for (body, field) in [
            (r#"{"rate_per_s": 1e400}"#, "rate_per_s"),
            (r#"{"concurrency": 1e400}"#, "concurrency"),
            (r#"{"kinds": {"k": {"retry": {"exponent": -1e400}}}}"#, "kinds.k.retry.exponent"),
        ] {
            send("PUT", "/api/v1/queues/q", body).await.problem(422, "invalid_field", Some(field));
        }
        let bad = r#"{"jobs": [{"queue": "q", "kind": "k", "payload": 1e400, "priority": 1e400}]}"#;
        send("POST", "/api/v1/jobs/batch", bad).await.problem(422, "invalid_field", Some("jobs[0].priority"));
        assert_eq!(api.job_count().await, 0);
    })
    .await;
}
