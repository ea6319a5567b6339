//! Synchronous calls over HTTP.

use domain::limits::ABANDONED_RETENTION_DEFAULT_S;
use serde_json::{Value, json};
use testkit::eventually::wait_until;
use testkit::on_both;

use crate::api::{Api, Response, json_request};

/// Waits for the one job of the queue and claims it.
async fn claim_next(api: &Api, queue: &str) -> (String, String, i64) {
    claim_next_as(api, api.worker(queue).await).await
}

async fn claim_next_as(api: &Api, worker: String) -> (String, String, i64) {
    let job = api.next_job(&worker).await;
    (job["id"].as_str().unwrap().to_owned(), worker, job["epoch"].as_i64().unwrap())
}

async fn call(api: &Api, queue: &str, outcome: Value) -> (Response, String) {
    // A long timeout, because the machine may pause.
    let request = json!({"queue": queue, "kind": "k", "payload": {"n": 1}, "timeout_s": 100});
    let work = async {
        let (job, worker, epoch) = claim_next(api, queue).await;
        let mut complete = json!({"job_id": job, "epoch": epoch});
        complete.as_object_mut().unwrap().extend(outcome.as_object().unwrap().clone());
        api.settle(&worker, complete).await;
        job
    };
    tokio::join!(api.post("/api/v1/calls", request), work)
}

fn failure(code: &str, retryable: bool) -> Value {
    json!({"outcome": "fail", "error": {"code": code, "message": "it broke", "retryable": retryable}})
}

/// Requirement Q5.
#[tokio::test]
async fn a_call_returns_the_result_of_the_handler() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let (response, job) = call(&api, "q", json!({"outcome": "finish", "result": {"sum": 1.50}})).await;
        assert_eq!((response.status.as_u16(), response.json()), (200, json!({"job_id": job, "result": {"sum": 1.50}})));
        let (response, job) = call(&api, "q", json!({"outcome": "finish"})).await;
        assert_eq!((response.status.as_u16(), response.json()), (200, json!({"job_id": job, "result": null})));
        let stored = api.get(&format!("/api/v1/jobs/{job}")).await.json();
        assert_eq!((&stored["triggered_by"], &stored["max_attempts"]), (&json!("call"), &json!(1)));
        assert_eq!(api.get("/api/v1/abandoned").await.json()["items"], json!([]), "the caller received the result");
    })
    .await;
}

/// Requirement Q5.
#[tokio::test]
async fn a_failed_call_is_mapped_by_its_code_and_not_retried() {
    on_both(async |db| {
        let api = Api::new(db).await;
        for (code, retryable, status, problem_code) in [
            ("bad_address", false, 422, "call_refused"),
            ("smtp_down", true, 502, "call_failed"),
            ("busy", true, 503, "call_unavailable"),
            ("timeout", true, 504, "call_timed_out"),
            ("out_of_memory", true, 507, "call_out_of_resources"),
            ("panic", true, 500, "call_broken"),
        ] {
            let (response, job) = call(&api, "q", failure(code, retryable)).await;
            response.problem(status, problem_code, None);
            let problem = response.json();
            assert_eq!((&problem["job_id"], &problem["error"]["code"]), (&json!(job), &json!(code)));
            let stored = api.get(&format!("/api/v1/jobs/{job}")).await.json();
            assert_eq!((&stored["state"], &stored["attempt"]), (&json!("failed"), &json!(1)), "{code}");
        }
    })
    .await;
}

/// Requirement Q5.
#[tokio::test]
async fn a_call_without_a_worker_is_unavailable_and_its_job_is_canceled() {
    on_both(async |db| {
        let api = Api::new(db).await;
        // The sweep of calls could cancel the job first, with another reason.
        api.state.engine.stop().await;
        let request = json!({"queue": "empty", "kind": "k", "timeout_s": 1});
        let response = api.post("/api/v1/calls", request.clone()).await;
        response.problem(503, "call_unavailable", None);
        let job = response.json()["job_id"].as_str().unwrap().to_owned();
        assert_eq!(api.get(&format!("/api/v1/jobs/{job}")).await.json()["state"], "canceled");
        // A worker exists but claims nothing, as if it were busy with other jobs.
        let worker = api.worker("empty").await;
        let response = api.post("/api/v1/calls", request).await;
        response.problem(504, "call_timed_out", None);
        let claim = api.post(&format!("/api/v1/workers/{worker}/claim"), json!({"max": 9})).await.json();
        assert_eq!(claim["jobs"], json!([]), "an abandoned call is not run");
        api.db.pass_ms(60_000).await;
        api.db.store.sweep_calls(ABANDONED_RETENTION_DEFAULT_S).await.unwrap();
        assert_eq!(api.get("/api/v1/abandoned").await.json()["items"], json!([]));
    })
    .await;
}

/// Requirement Q5.
#[tokio::test]
async fn the_result_for_a_disconnected_caller_is_stored_and_listed() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let request = json_request("POST", "/api/v1/calls", &json!({"queue": "q", "kind": "k", "timeout_s": 60}));
        let claimed = async {
            let claimed = claim_next(&api, "q").await;
            // When this request is answered, the call has learned of its commit and waits.
            api.get(&format!("/api/v1/jobs/{}", claimed.0)).await;
            claimed
        };
        let (job, worker, epoch) = tokio::select! {
            response = api.send(request) => panic!("answered {}", response.status),
            claimed = claimed => claimed,
        };
        // The select dropped the request, which is what a closed connection does.
        let finish = json!({"job_id": job, "epoch": epoch, "outcome": "finish", "result": {"late": true}});
        api.settle(&worker, finish).await;
        wait_until("the result is stored", async || {
            !api.get("/api/v1/abandoned").await.json()["items"].as_array().unwrap().is_empty()
        })
        .await;
        let page = api.get("/api/v1/abandoned?limit=1").await.json();
        let abandoned = &page["items"][0];
        assert_eq!((&abandoned["job_id"], &abandoned["result"]), (&json!(job), &json!({"late": true})));
        assert_eq!((&abandoned["state"], &abandoned["queue"]), (&json!("succeeded"), &json!("q")));
        assert_eq!(page["next_cursor"], Value::Null);
        api.db.pass_ms(8 * 24 * 3_600 * 1_000).await;
        wait_until("the result is pruned after seven days", async || {
            api.get("/api/v1/abandoned").await.json()["items"].as_array().unwrap().is_empty()
        })
        .await;
    })
    .await;
}

/// Requirement Q5.
#[tokio::test]
async fn a_call_times_out_and_its_late_result_is_stored() {
    on_both(async |db| {
        let api = Api::new(db).await;
        // The worker is registered first, so that the call is claimed before its timeout.
        let worker = api.worker("q").await;
        let request = api.post("/api/v1/calls", json!({"queue": "q", "kind": "k", "timeout_s": 20}));
        let (response, (job, worker, epoch)) = tokio::join!(request, claim_next_as(&api, worker));
        response.problem(504, "call_timed_out", None);
        assert_eq!(response.json()["job_id"], job.as_str());
        // The handler continues after the timeout.
        api.db.pass_ms(30_000).await;
        api.db.store.sweep().await.unwrap();
        api.settle(&worker, json!({"job_id": job, "epoch": epoch, "outcome": "finish", "result": 1})).await;
        wait_until("the result is stored", async || {
            api.db.store.sweep_calls(ABANDONED_RETENTION_DEFAULT_S).await.unwrap();
            let page = api.get("/api/v1/abandoned").await.json();
            let mut items = page["items"].as_array().unwrap().iter();
            items.any(|item| item["job_id"] == job.as_str() && item["result"] == 1)
        })
        .await;
    })
    .await;
}

/// Requirement Q5.
#[tokio::test]
async fn a_field_that_does_not_apply_to_a_call_is_rejected_by_name() {
    on_both(async |db| {
        let api = Api::new(db).await;
        for (member, value) in [
            ("run_at", json!("2030-01-01T00:00:00Z")),
            ("max_attempts", json!(3)),
            ("retry", json!({})),
            ("unique_key", json!("x")),
            ("timeout_s", json!(0)),
            ("timeout_s", json!(100_000)),
            ("queue", json!("a b")),
        ] {
            let mut request = json!({"queue": "q", "kind": "k"});
            request[member] = value;
            api.post("/api/v1/calls", request).await.problem(422, "invalid_field", Some(member));
        }
        let mut keyed = json_request("POST", "/api/v1/calls", &json!({"queue": "q", "kind": "k"}));
        keyed.headers_mut().insert("idempotency-key", "once".parse().unwrap());
        api.send(keyed).await.problem(400, "invalid_header", Some("Idempotency-Key"));
        assert_eq!(api.job_count().await, 0);
    })
    .await;
}

/// Requirement Q5.
#[tokio::test]
async fn a_stop_distinguishes_running_calls_from_waiting_ones() {
    on_both(async |db| {
        let api = Api::new(db).await;
        api.state.engine.stop().await;
        let call = |queue: &str| json!({"queue": queue, "kind": "k", "timeout_s": 100});
        let worker = api.worker("claimed").await;
        let stop = async {
            claim_next_as(&api, worker).await;
            wait_until("both calls have a job", async || api.job_count().await == 2).await;
            api.state.stopping.cancel();
        };
        let (claimed, waiting, ()) =
            tokio::join!(api.post("/api/v1/calls", call("claimed")), api.post("/api/v1/calls", call("waiting")), stop);
        claimed.problem(504, "call_timed_out", None);
        waiting.problem(503, "call_unavailable", None);
        let job = waiting.json()["job_id"].as_str().unwrap().to_owned();
        assert_eq!(api.get(&format!("/api/v1/jobs/{job}")).await.json()["state"], "canceled");
    })
    .await;
}
