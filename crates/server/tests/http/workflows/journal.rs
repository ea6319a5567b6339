//! The journal over HTTP: record, read and fork.

use serde_json::{Value, json};
use testkit::on_both;

use crate::api::{Api, Response, members};

impl Api {
    /// Records operations of one job.
    pub(crate) async fn journal(&self, worker: &str, job: &str, epoch: i64, ops: Value) -> Response {
        let writes = json!({"writes": [{"job_id": job, "epoch": epoch, "ops": ops}]});
        self.post(&format!("/api/v1/workers/{worker}/journal"), writes).await
    }
}

#[tokio::test]
async fn a_step_is_recorded_and_comes_with_the_next_claim() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let (job, worker, epoch) = api.claimed("q").await;
        let step = json!({"op": "step", "key": "a/b", "result": {"n": 1}, "hash": "x", "duration_ms": 5});
        let first = api.journal(&worker, &job, epoch, json!([step])).await;
        assert_eq!(first.status, 200, "{:?}", first.body);
        let first = first.json();
        assert_eq!(first["results"][0]["status"], "applied");
        let entry = &first["results"][0]["entries"][0];
        assert_eq!(
            (&entry["existing"], &entry["status"], &entry["result"]),
            (&json!(false), &json!("resolved"), &Value::Null)
        );
        let again = api.journal(&worker, &job, epoch, json!([{"op": "step", "key": "a/b", "result": 2}])).await.json();
        let entry = &again["results"][0]["entries"][0];
        assert_eq!((&entry["existing"], &entry["result"]), (&json!(true), &json!({"n": 1})));
        assert_eq!(
            api.journal(&worker, &job, epoch + 1, json!([step])).await.json()["results"][0]["status"],
            "claim_lost"
        );
        api.settle(&worker, json!({"job_id": job, "epoch": epoch, "outcome": "release"})).await;
        let claimed = api.next_job(&worker).await;
        let journal = &claimed["journal"];
        assert_eq!((journal["entries"].as_array().map(Vec::len), &journal["next_cursor"]), (Some(1), &Value::Null));
        assert_eq!(journal["entries"][0]["result"], json!({"n": 1}));
        let view = api.get(&format!("/api/v1/jobs/{job}/journal")).await.json();
        assert_eq!(members(&view), ["bytes", "entries", "items", "next_cursor", "resolved", "warnings"]);
        assert_eq!((&view["items"][0]["key"], &view["items"][0]["duration_ms"]), (&json!("a/b"), &json!(5)));
        let missing = api.get("/api/v1/jobs/00000000-0000-7000-8000-000000000000/journal").await;
        missing.problem(404, "not_found", None);
    })
    .await;
}

#[tokio::test]
async fn a_journal_is_read_in_pages() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let (job, worker, epoch) = api.claimed("q").await;
        let ops: Vec<Value> =
            (0..5).map(|number| json!({"op": "step", "key": format!("s{number}"), "result": number})).collect();
        api.journal(&worker, &job, epoch, json!(ops)).await;
        let (mut keys, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = api.get(&format!("/api/v1/jobs/{job}/journal?limit=2{cursor}")).await.json();
            keys.extend(
                page["items"].as_array().unwrap().iter().map(|entry| entry["key"].as_str().unwrap().to_owned()),
            );
            let Some(next) = page["next_cursor"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
        assert_eq!(keys, ["s0", "s1", "s2", "s3", "s4"]);
        api.get(&format!("/api/v1/jobs/{job}/journal?cursor=x")).await.problem(400, "invalid_cursor", Some("cursor"));
    })
    .await;
}

#[tokio::test]
async fn an_operation_with_an_invalid_member_names_it() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let (job, worker, epoch) = api.claimed("q").await;
        for (op, member) in [
            (json!({"op": "step", "key": "", "result": 1}), "key"),
            (json!({"op": "step", "key": ".", "result": 1}), "key"),
            (json!({"op": "step", "key": "x".repeat(257), "result": 1}), "key"),
            (json!({"op": "step", "key": "a\u{0}", "result": 1}), "key"),
            (json!({"op": "step", "key": "a"}), "result"),
            (json!({"op": "step", "key": "a", "result": 1, "error": {"code": "x"}}), "error"),
            (json!({"op": "step", "key": "a", "error": {"code": ""}}), "error.code"),
            (json!({"op": "step", "key": "a", "result": 1, "attempt": 0}), "attempt"),
            (json!({"op": "step", "key": "a", "result": 1, "duration_ms": -1}), "duration_ms"),
            (json!({"op": "step", "key": "a", "result": 1, "hash": ""}), "hash"),
            (json!({"op": "step", "key": "a", "result": 1, "topic": "t"}), "topic"),
            (json!({"op": "step", "key": "a", "result": "x".repeat(1 << 20)}), "result"),
            (json!({"op": "publish", "key": "a", "data": 1}), "topic"),
            (json!({"op": "publish", "key": "a", "topic": "t"}), "data"),
            (json!({"op": "publish", "key": "a", "topic": "t", "data": 1, "result": 1}), "result"),
            (json!({"op": "explode", "key": "a"}), "op"),
        ] {
            let field = format!("writes[0].ops[0].{member}");
            api.journal(&worker, &job, epoch, json!([op])).await.problem(422, "invalid_field", Some(&field));
        }
        let many: Vec<Value> =
            (0..1_001).map(|number| json!({"op": "step", "key": format!("s{number}"), "result": 1})).collect();
        api.journal(&worker, &job, epoch, json!(many)).await.problem(422, "invalid_field", Some("writes"));
        let large = json!([{"op": "step", "key": "a", "result": "x".repeat(17 << 20)}]);
        api.journal(&worker, &job, epoch, large).await.problem(413, "body_too_large", None);
        assert_eq!(api.get(&format!("/api/v1/jobs/{job}/journal")).await.json()["entries"], 0);
    })
    .await;
}

#[tokio::test]
async fn drift_is_a_warning_in_the_signal_and_an_error_for_a_strict_worker() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let (job, worker, epoch) = api.claimed("q").await;
        let step = |hash: &str| json!([{"op": "step", "key": "a", "result": 1, "hash": hash}]);
        api.journal(&worker, &job, epoch, step("x")).await;
        let strict = json!({"writes": [{"job_id": job, "epoch": epoch, "strict": true, "ops": step("y")}]});
        let path = format!("/api/v1/workers/{worker}/journal");
        api.post(&path, strict).await.problem(409, "workflow_drift", Some("writes[0].ops[0].key"));
        let warnings =
            async || api.get(&format!("/api/v1/jobs/{job}/signal")).await.json()["diagnostics"]["warnings"].clone();
        assert_eq!(warnings().await, Value::Null);
        assert_eq!(api.journal(&worker, &job, epoch, step("y")).await.status, 200);
        assert!(warnings().await[0].as_str().unwrap().contains("the handler has changed"));
    })
    .await;
}

#[tokio::test]
async fn a_fork_starts_with_the_steps_before_the_chosen_one() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let (job, worker, epoch) = api.claimed("q").await;
        let ops = json!([{"op": "step", "key": "a", "result": 1}, {"op": "step", "key": "b", "result": 2}]);
        api.journal(&worker, &job, epoch, ops).await;
        let path = format!("/api/v1/jobs/{job}/fork");
        let fork = api.post(&path, json!({"from": "b", "payload": {"n": 9}})).await;
        assert_eq!(fork.status, 202, "{:?}", fork.body);
        let fork = fork.json();
        let new = api.get(&format!("/api/v1/jobs/{}", fork["id"].as_str().unwrap())).await.json();
        assert_eq!((&new["parent"], &new["payload"]), (&json!(job), &json!({"n": 9})));
        let claimed = api.next_job(&worker).await;
        assert_eq!((&claimed["id"], &claimed["journal"]["entries"][0]["key"]), (&fork["id"], &json!("a")));
        assert_eq!(claimed["journal"]["entries"].as_array().unwrap().len(), 1);
        api.post(&path, json!({"from": "z"})).await.problem(422, "invalid_field", Some("from"));
        api.post(&path, json!({})).await.problem(422, "invalid_field", Some("from"));
    })
    .await;
}

#[tokio::test]
async fn only_a_worker_or_a_reader_of_results_sees_them() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let (job, worker, epoch) = api.claimed("q").await;
        let failed = json!({"op": "step", "key": "b", "error": {"code": "x", "message": "secret", "retryable": false}});
        api.journal(&worker, &job, epoch, json!([{"op": "step", "key": "a", "result": "secret"}, failed])).await;
        let path = format!("/api/v1/jobs/{job}/journal");
        for (request, sees) in [
            (json!({"name": "viewer", "role": "viewer"}), false),
            (json!({"name": "reader", "role": "viewer", "rights": ["read_results"]}), true),
            (json!({"name": "worker", "role": "worker"}), true),
            (json!({"name": "worker of q", "role": "worker", "queues": ["q"]}), true),
        ] {
            let journal = api.caller(request.clone()).await.get(&path).await;
            assert_eq!(journal.status, 200, "{request}");
            assert_eq!(journal.json().to_string().contains("secret"), sees, "{request}");
        }
        let other = api.caller(json!({"name": "worker of p", "role": "worker", "queues": ["p"]})).await;
        other.get(&path).await.problem(404, "not_found", None);
    })
    .await;
}
