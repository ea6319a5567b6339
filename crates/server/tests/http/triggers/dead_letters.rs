//! Dead letters over HTTP.

use serde_json::{Value, json};
use testkit::on_both;

use crate::api::Api;

const LETTERS: &str = "/api/v1/dead-letters";

/// Fails a job permanently. Returns the job and its dead letter.
async fn dead(api: &Api) -> (String, Value) {
    let (job, worker, epoch) = api.claimed("q").await;
    let error = json!({"code": "boom", "message": "it broke", "retryable": false});
    api.settle(&worker, json!({"job_id": job, "epoch": epoch, "outcome": "fail", "error": error})).await;
    let found = api.get(&format!("{LETTERS}?job_id={job}")).await.json();
    (job, found["items"][0].clone())
}

/// Requirement T6.
#[tokio::test]
async fn a_dead_letter_has_the_documented_shape() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let (job, letter) = dead(&api).await;
        let error = json!({"code": "boom", "message": "it broke", "retryable": false});
        let at = &letter["created_at"];
        let expected = json!({
            "id": letter["id"], "event_id": job, "source": "job", "op": "failed", "trigger_id": null, "script_id": null,
            "job_id": job, "queue": "q", "kind": "k", "payload": {"n": 1}, "depth": 0,
            "attempts": [{"at": at, "error": error}], "attempt_count": 1, "first_attempt_at": at, "last_attempt_at": at,
            "last_error": error, "created_at": at, "resolved_at": null, "resolution": null, "resolved_by": null,
            "note": null, "replayed_as": null, "handlers": [],
        });
        assert_eq!(letter, expected);
        assert_eq!(
            api.get(&format!("{LETTERS}/count?resolved=false")).await.json(),
            json!({"count": 1, "capped": false})
        );
        let id = letter["id"].as_str().unwrap();
        assert_eq!(api.get(&format!("{LETTERS}/{id}")).await.json(), expected);
    })
    .await;
}

/// Requirement T7.
#[tokio::test]
async fn dead_letters_are_replayed_and_resolved_over_http() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let (job, letter) = dead(&api).await;
        let path = format!("{LETTERS}/{}", letter["id"].as_str().unwrap());
        let replayed = api.post(&format!("{path}/replay"), json!({"payload": {"n": 2}})).await;
        assert_eq!(replayed.status, 202);
        let again = replayed.json()["job_id"].clone();
        let twice = api.post(&format!("{path}/replay"), json!({})).await;
        assert_eq!((twice.status.as_u16(), &twice.json()["job_id"]), (200, &again));
        let same = api.post(&format!("{path}/replay"), json!({"payload": {"n": 2}})).await;
        assert_eq!((same.status.as_u16(), &same.json()["job_id"]), (200, &again));
        let edited = api.post(&format!("{path}/replay"), json!({"payload": {"n": 3}})).await;
        edited.problem(409, "already_retried", None);
        let detail = format!("already retried as job {}", again.as_str().unwrap());
        assert!(edited.json()["detail"].as_str().unwrap().contains(&detail), "{}", edited.json());
        let made = api.get(&format!("/api/v1/jobs/{}", again.as_str().unwrap())).await.json();
        assert_eq!((&made["payload"], &made["parent"], &made["attempt"]), (&json!({"n": 2}), &json!(job), &json!(0)));
        let resolved = api.get(&path).await.json();
        assert_eq!((&resolved["resolution"], &resolved["replayed_as"]), (&json!("replayed"), &again));
        assert_eq!(resolved["resolved_by"], "local");
        let ignore = json!({"resolution": "ignored"});
        api.post(&format!("{path}/resolve"), ignore.clone()).await.problem(409, "already_resolved", None);

        let worker = api.worker("q").await;
        api.post(&format!("/api/v1/workers/{worker}/claim"), json!({"max": 9})).await;
        let ids: Vec<Value> =
            [dead(&api).await, dead(&api).await, dead(&api).await].map(|(_, l)| l["id"].clone()).into();
        let first = format!("{LETTERS}/{}", ids[0].as_str().unwrap());
        let ignored =
            api.post(&format!("{first}/resolve"), json!({"resolution": "ignored", "note": "known"})).await.json();
        assert_eq!((&ignored["resolution"], &ignored["note"]), (&json!("ignored"), &json!("known")));
        let dry =
            api.post(&format!("{LETTERS}/replay"), json!({"filter": {"error_code": "boom"}, "dry_run": true})).await;
        assert_eq!((dry.status.as_u16(), &dry.json()["matched"]), (200, &json!(2)));
        let jobs = api.job_count().await;
        let many = api.post(&format!("{LETTERS}/replay"), json!({"filter": {"error_code": "boom"}})).await;
        assert_eq!((many.status.as_u16(), &many.json()["replayed"]), (202, &json!(2)));
        assert_eq!(api.job_count().await, jobs + 2);
        let by_id = api.post(&format!("{LETTERS}/replay"), json!({"ids": ids})).await.json();
        assert_eq!((&by_id["replayed"], &by_id["already_resolved"]), (&json!(0), &json!(3)));
    })
    .await;
}

/// Requirement X10.
#[tokio::test]
async fn invalid_dead_letter_requests_are_rejected() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let missing = format!("{LETTERS}/01890a5d-ac96-774b-bcce-b302099a8057");
        api.get(&missing).await.problem(404, "not_found", None);
        api.get(&format!("{LETTERS}/x")).await.problem(404, "not_found", None);
        api.post(&format!("{missing}/replay"), json!({})).await.problem(404, "not_found", None);
        let (_, letter) = dead(&api).await;
        let path = format!("{LETTERS}/{}", letter["id"].as_str().unwrap());
        for bad in ["replayed", "handler_failed", "done", ""] {
            let resolve = api.post(&format!("{path}/resolve"), json!({"resolution": bad})).await;
            resolve.problem(422, "invalid_field", Some("resolution"));
        }
        for (query, field) in [("resolved=yes", "resolved"), ("trigger_id=x", "trigger_id"), ("since=x", "since")] {
            api.get(&format!("{LETTERS}?{query}")).await.problem(400, "invalid_query", Some(field));
        }
        api.post(&format!("{LETTERS}/replay"), json!({})).await.problem(422, "invalid_field", Some("ids"));
        let both = json!({"ids": [], "filter": {}});
        api.post(&format!("{LETTERS}/replay"), both).await.problem(422, "invalid_field", Some("filter"));
        let unknown = json!({"filter": {"colour": "red"}});
        api.post(&format!("{LETTERS}/replay"), unknown).await.problem(422, "invalid_field", Some("filter.colour"));
    })
    .await;
}

/// Requirement X7.
#[tokio::test]
async fn error_messages_of_jobs_require_the_right_to_read_logs() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let root = api.caller(json!({"name": "root", "role": "admin"})).await;
        let operator = api.caller(json!({"name": "o", "role": "operator", "rights": ["read_payloads"]})).await;
        let job = json!({"queue": "q", "kind": "k", "subject": "s-1", "max_attempts": 1});
        assert_eq!(root.post("/api/v1/jobs", job).await.status, 202);
        let worker = root.post("/api/v1/workers", json!({"name": "w", "queues": ["q"]})).await.json();
        let worker = format!("/api/v1/workers/{}", worker["id"].as_str().unwrap());
        let claimed = root.post(&format!("{worker}/claim"), json!({"max": 1})).await.json()["jobs"][0].clone();
        let outcome = json!({"job_id": claimed["id"], "epoch": claimed["epoch"], "outcome": "fail",
            "error": {"code": "boom", "message": "the password is hunter2", "retryable": false}});
        root.post(&format!("{worker}/settle"), json!({"outcomes": [outcome]})).await;
        for path in [LETTERS, "/api/v1/history?subject=s-1", "/api/v1/subjects/s-1/history"] {
            let (whole, part) = (root.get(path).await.json(), operator.get(path).await.json());
            assert!(whole.to_string().contains("hunter2"), "{path}: {whole}");
            assert!(part.to_string().contains("boom"), "{path}: {part}");
            assert!(!part.to_string().contains("hunter2"), "{path}: {part}");
        }
    })
    .await;
}
