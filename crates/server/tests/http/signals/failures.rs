//! Failures over HTTP: signatures, failure groups and predictions.

use serde_json::{Value, json};
use testkit::on_both;

use crate::api::{Api, members};
use crate::signals::job_signals::signal;

async fn fail(api: &Api, body: Value, code: &str) -> String {
    let job = api.post("/api/v1/jobs", body).await.json()["id"].as_str().unwrap().to_owned();
    let worker = api.worker("scan").await;
    let claim = api.post(&format!("/api/v1/workers/{worker}/claim"), json!({"max": 1})).await.json();
    let epoch = claim["jobs"][0]["epoch"].clone();
    api.put(&format!("/api/v1/jobs/{job}/signal"), json!({"epoch": epoch, "phase": "analyze"})).await;
    let error = json!({"code": code, "message": "layer 7 is broken", "retryable": false});
    api.settle(&worker, json!({"job_id": job, "epoch": epoch, "outcome": "fail", "error": error})).await;
    job
}

/// Requirement S6.
#[tokio::test]
async fn signatures_are_created_read_changed_matched_and_deleted() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let body = json!({
            "pattern": {"kind": "scan", "phase": "analyze", "error_code": "LAYER", "image_pattern": "^nginx"},
            "outcome": {"likely_cause": "rate limiting", "mttr_p50_seconds": 300, "suggested_action": "wait",
                        "remediation_url": "https://example.com/runbook"},
        });
        let made = api.post("/api/v1/signatures", body.clone()).await;
        assert_eq!(made.status, 201);
        let made = made.json();
        assert_eq!((&made["confidence"], &made["signature_version"]), (&json!(0.5), &json!(1)));
        assert_eq!(made["pattern"]["subject_pattern"], "^nginx", "image_pattern is an alias of subject_pattern");
        assert_eq!(
            (&made["sample_count"], &made["enabled"], &made["status"]),
            (&json!(0), &json!(true), &json!("manual"))
        );
        api.post("/api/v1/signatures", body).await.problem(409, "signature_exists", Some("pattern"));
        let id = made["id"].as_str().unwrap();
        let path = format!("/api/v1/signatures/{id}");
        assert_eq!(api.get(&path).await.json(), made);
        assert_eq!(api.get("/api/v1/signatures").await.json()["items"], json!([made]));
        let full = json!({"items": [made], "next_cursor": null});
        assert_eq!(api.get("/api/v1/signatures?limit=1").await.json(), full, "a full last page has no cursor");

        let facts = json!({"phase": "analyze", "error_code": "LAYER", "kind": "scan", "subject": "nginx:1"});
        let found = api.post("/api/v1/signatures/match", facts.clone()).await;
        assert_eq!((found.status.as_u16(), &found.json()["signature_id"]), (200, &json!(id)));
        assert_eq!(members(&found.json()), ["confidence", "outcome", "signature_id"]);
        let miss = api.post("/api/v1/signatures/match", json!({"phase": "analyze"})).await;
        assert_eq!((miss.status.as_u16(), miss.body.len()), (204, 0));
        let changed = api.put(&path, json!({"muted": true, "confidence": 0.9})).await.json();
        assert_eq!((&changed["signature_version"], &changed["outcome"]), (&json!(2), &made["outcome"]));
        assert_eq!(api.post("/api/v1/signatures/match", facts).await.status, 204);

        let post = async |body: Value| api.post("/api/v1/signatures", body).await;
        post(json!({"pattern": {}})).await.problem(422, "invalid_field", Some("pattern"));
        post(json!({"pattern": {"subject_pattern": "("}})).await.problem(
            422,
            "invalid_field",
            Some("pattern.subject_pattern"),
        );
        post(json!({"pattern": {"subject_pattern": "(?=a)"}})).await.problem(
            422,
            "invalid_field",
            Some("pattern.subject_pattern"),
        );
        post(json!({"pattern": {"kind": "k"}, "confidence": 2})).await.problem(
            422,
            "invalid_field",
            Some("confidence"),
        );
        post(json!({"pattern": {"kind": "k", "odd": 1}})).await.problem(422, "invalid_field", Some("pattern.odd"));
        for bad in ["javascript:x", "//evil.example/x", "/\\evil.example", "docs/x"] {
            let url = json!({"pattern": {"kind": "k"}, "outcome": {"remediation_url": bad}});
            post(url).await.problem(422, "invalid_field", Some("outcome.remediation_url"));
        }
        let relative = json!({"pattern": {"kind": "k"}, "outcome": {"remediation_url": "/docs/rate-limits"}});
        assert_eq!(post(relative).await.json()["outcome"]["remediation_url"], "/docs/rate-limits");
        assert_eq!(api.call("DELETE", &path).await.status, 204);
        api.call("DELETE", &path).await.problem(404, "not_found", None);
        api.get(&path).await.problem(404, "not_found", None);
        assert_eq!(
            api.get("/api/v1/signatures/nonsense").await.json(),
            api.get(&path).await.json(),
            "an invalid id gets the response of a missing one"
        );
    })
    .await;
}

/// Requirement S8.
#[tokio::test]
async fn a_new_job_predicts_known_failures_and_the_failure_group_is_retried() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let job = || json!({"queue": "scan", "kind": "scan", "subject": "nginx", "max_attempts": 1});
        for _ in 0..3 {
            fail(&api, job(), "LAYER_EXTRACT_FAILED").await;
        }
        while api.db.store.learn_failures().await.unwrap() > 0 {}
        // The engine's own task may have grouped them first.
        let is_grouped = |groups: &Value| {
            groups["items"][0]["count"] == 3 && groups["items"][0]["signature_id"].is_string()
        };
        let groups = api.get_when("/api/v1/failures", is_grouped).await;
        let group = &groups["items"][0];
        let expected = [
            "count", "error_code", "example", "first_seen", "group_id", "hourly", "kind", "last_job_id", "last_seen",
            "message_pattern", "phase", "recurred_at", "repair_p50_seconds", "signature_id", "subject_count", "subjects",
            "trend",
        ];
        assert_eq!(members(group), expected);
        assert_eq!((&group["phase"], &group["subjects"], &group["trend"]), (&json!("analyze"), &json!(["nginx"]), &json!("new")));
        let signature = group["signature_id"].as_str().unwrap();
        let cause = json!({"confirmed": true, "outcome": {"likely_cause": "registry rate limiting", "mttr_p50_seconds": 300}});
        assert_eq!(api.put(&format!("/api/v1/signatures/{signature}"), cause).await.json()["status"], "confirmed");

        let next = api.post("/api/v1/jobs", job()).await.json()["id"].as_str().unwrap().to_owned();
        let predicted_signal = signal(&api, &next).await;
        assert_eq!(predicted_signal.header("x-signal-source"), "failure_index");
        let predicted_signal = predicted_signal.json();
        let predicted = &predicted_signal["predicted"];
        assert_eq!((&predicted["signature_id"], &predicted["likely_cause"]), (&json!(signature), &json!("registry rate limiting")));
        assert_eq!(predicted["evidence"], json!({"failed": 3, "of": 3, "by": "subject"}));
        let expected = "the last 3 with this subject failed in analyze: LAYER_EXTRACT_FAILED; usually registry rate limiting; \
                        clears in about 5 min";
        let summary = predicted_signal["summary"].as_str().unwrap().to_lowercase();
        assert!(summary.contains(&expected.to_lowercase()), "{predicted_signal}");

        let replay = format!("/api/v1/failures/{}/replay", group["group_id"].as_str().unwrap());
        let replayed = api.post(&replay, json!({"limit": 2})).await;
        assert_eq!((replayed.status.as_u16(), replayed.json()["jobs"].as_array().unwrap().len()), (202, 2));
        assert_eq!(api.call("POST", &replay).await.json()["jobs"].as_array().unwrap().len(), 1, "each job once");
        api.post(&replay, json!({"limit": 0})).await.problem(422, "invalid_field", Some("limit"));
        let missing = "/api/v1/failures/01890a5d-ac96-774b-bcce-b302099a8057";
        api.get(missing).await.problem(404, "not_found", None);
        api.call("POST", &format!("{missing}/replay")).await.problem(404, "not_found", None);
        assert_eq!(
            api.get("/api/v1/failures/nonsense").await.json(),
            api.get(missing).await.json(),
            "an invalid id gets the response of a missing one"
        );
        let full = api.get("/api/v1/failures?limit=1").await.json();
        let shown = full["items"].as_array().unwrap().len();
        assert_eq!((shown, &full["next_cursor"]), (1, &Value::Null), "a full last page has no cursor");
        api.get("/api/v1/failures?cursor=x").await.problem(400, "invalid_cursor", Some("cursor"));
    })
    .await;
}
