//! Synchronous calls over HTTP (Q5).

use domain::limits::ABANDONED_RETENTION_S_DEFAULT;
use serde_json::{Value, json};
use testkit::on_both;
use testkit::receiver::wait_until;

use crate::api::{Answer, Api, json_request};

/// Claims the one job of the queue once it is there.
async fn take(api: &Api, queue: &str) -> (String, String, i64) {
    take_as(api, api.worker(queue).await).await
}

async fn take_as(api: &Api, worker: String) -> (String, String, i64) {
    let job = api.next_job(&worker).await;
    (job["id"].as_str().unwrap().to_owned(), worker, job["epoch"].as_i64().unwrap())
}

async fn call(api: &Api, queue: &str, outcome: Value) -> (Answer, String) {
    // It is answered long before its time is up, also by a machine that stands still now and then.
    let request = json!({"queue": queue, "kind": "k", "payload": {"n": 1}, "timeout_s": 100});
    let work = async {
        let (job, worker, epoch) = take(api, queue).await;
        let mut said = json!({"job_id": job, "epoch": epoch});
        said.as_object_mut().unwrap().extend(outcome.as_object().unwrap().clone());
        api.settle(&worker, said).await;
        job
    };
    tokio::join!(api.post("/api/v1/calls", request), work)
}

fn failure(code: &str, retryable: bool) -> Value {
    json!({"outcome": "fail", "error": {"code": code, "message": "it broke", "retryable": retryable}})
}

#[tokio::test]
async fn q5_a_call_answers_with_the_handlers_result() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let (answer, job) = call(&api, "q", json!({"outcome": "finish", "result": {"sum": 1.50}})).await;
        assert_eq!((answer.status.as_u16(), answer.json()), (200, json!({"job_id": job, "result": {"sum": 1.50}})));
        let (answer, job) = call(&api, "q", json!({"outcome": "finish"})).await;
        assert_eq!((answer.status.as_u16(), answer.json()), (200, json!({"job_id": job, "result": null})));
        let stored = api.get(&format!("/api/v1/jobs/{job}")).await.json();
        assert_eq!((&stored["triggered_by"], &stored["max_attempts"]), (&json!("call"), &json!(1)));
        assert_eq!(api.get("/api/v1/abandoned").await.json()["items"], json!([]), "nobody was gone");
    })
    .await;
}

#[tokio::test]
async fn q5_a_failure_is_mapped_by_its_code_and_never_tried_again() {
    on_both(async |db| {
        let api = Api::new(db).await;
        for (code, retryable, status, told) in [
            ("bad_address", false, 422, "call_refused"),
            ("smtp_down", true, 502, "call_failed"),
            ("busy", true, 503, "call_unavailable"),
            ("timeout", true, 504, "call_timed_out"),
            ("out_of_memory", true, 507, "call_out_of_resources"),
            ("panic", true, 500, "call_broken"),
        ] {
            let (answer, job) = call(&api, "q", failure(code, retryable)).await;
            answer.problem(status, told, None);
            let problem = answer.json();
            assert_eq!((&problem["job_id"], &problem["error"]["code"]), (&json!(job), &json!(code)));
            let stored = api.get(&format!("/api/v1/jobs/{job}")).await.json();
            assert_eq!((&stored["state"], &stored["attempt"]), (&json!("failed"), &json!(1)), "{code}");
        }
    })
    .await;
}

#[tokio::test]
async fn q5_a_call_that_nobody_takes_is_unavailable_and_called_off() {
    on_both(async |db| {
        let api = Api::new(db).await;
        // A sweep that comes before the caller's own word would tell it another reason.
        api.state.engine.stop().await;
        let request = json!({"queue": "empty", "kind": "k", "timeout_s": 1});
        let answer = api.post("/api/v1/calls", request.clone()).await;
        answer.problem(503, "call_unavailable", None);
        let job = answer.json()["job_id"].as_str().unwrap().to_owned();
        assert_eq!(api.get(&format!("/api/v1/jobs/{job}")).await.json()["state"], "canceled");
        // A worker that is there but busy with others: its turn does not come.
        let worker = api.worker("empty").await;
        let answer = api.post("/api/v1/calls", request).await;
        answer.problem(504, "call_timed_out", None);
        let claim = api.post(&format!("/api/v1/workers/{worker}/claim"), json!({"max": 9})).await.json();
        assert_eq!(claim["jobs"], json!([]), "what nobody waits for is not run");
        api.db.pass_ms(60_000).await;
        api.db.store.sweep_calls(ABANDONED_RETENTION_S_DEFAULT).await.unwrap();
        assert_eq!(api.get("/api/v1/abandoned").await.json()["items"], json!([]));
    })
    .await;
}

#[tokio::test]
async fn q5_an_answer_whose_caller_is_gone_is_kept_and_listed() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let request = json_request("POST", "/api/v1/calls", &json!({"queue": "q", "kind": "k", "timeout_s": 60}));
        let taken = async {
            let taken = take(&api, "q").await;
            // By the answer to another request the call has heard of its own commit and waits.
            api.get(&format!("/api/v1/jobs/{}", taken.0)).await;
            taken
        };
        let (job, worker, epoch) = tokio::select! {
            answer = api.ask(request) => panic!("answered {}", answer.status),
            taken = taken => taken,
        };
        // The select has dropped the request, as a broken connection does.
        let finish = json!({"job_id": job, "epoch": epoch, "outcome": "finish", "result": {"late": true}});
        api.settle(&worker, finish).await;
        wait_until("the answer is kept", async || {
            !api.get("/api/v1/abandoned").await.json()["items"].as_array().unwrap().is_empty()
        })
        .await;
        let page = api.get("/api/v1/abandoned?limit=1").await.json();
        let kept = &page["items"][0];
        assert_eq!((&kept["job_id"], &kept["result"]), (&json!(job), &json!({"late": true})));
        assert_eq!((&kept["state"], &kept["queue"]), (&json!("succeeded"), &json!("q")));
        assert_eq!(page["next_cursor"], Value::Null);
        api.db.pass_ms(8 * 24 * 3_600 * 1_000).await;
        wait_until("it is pruned after seven days", async || {
            api.get("/api/v1/abandoned").await.json()["items"].as_array().unwrap().is_empty()
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn q5_a_call_past_its_time_is_told_and_its_late_answer_kept() {
    on_both(async |db| {
        let api = Api::new(db).await;
        // It must be taken within its time, so the worker is there before it.
        let worker = api.worker("q").await;
        let request = api.post("/api/v1/calls", json!({"queue": "q", "kind": "k", "timeout_s": 20}));
        let (answer, (job, worker, epoch)) = tokio::join!(request, take_as(&api, worker));
        answer.problem(504, "call_timed_out", None);
        assert_eq!(answer.json()["job_id"], job.as_str());
        // The handler takes a while longer, and nobody stops it.
        api.db.pass_ms(30_000).await;
        api.db.store.sweep().await.unwrap();
        api.settle(&worker, json!({"job_id": job, "epoch": epoch, "outcome": "finish", "result": 1})).await;
        wait_until("the answer is kept", async || {
            api.db.store.sweep_calls(ABANDONED_RETENTION_S_DEFAULT).await.unwrap();
            let page = api.get("/api/v1/abandoned").await.json();
            let mut kept = page["items"].as_array().unwrap().iter();
            kept.any(|kept| kept["job_id"] == job.as_str() && kept["result"] == 1)
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn q5_what_makes_no_sense_for_a_call_is_refused_by_name() {
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
        api.ask(keyed).await.problem(400, "invalid_header", Some("Idempotency-Key"));
        assert_eq!(api.job_count().await, 0);
    })
    .await;
}

#[tokio::test]
async fn q5_a_stop_tells_what_is_at_work_from_what_still_waits() {
    on_both(async |db| {
        let api = Api::new(db).await;
        api.state.engine.stop().await;
        let call = |queue: &str| json!({"queue": queue, "kind": "k", "timeout_s": 100});
        let worker = api.worker("taken").await;
        let stop = async {
            take_as(&api, worker).await;
            // The other is there as well.
            wait_until("both wait", async || api.job_count().await == 2).await;
            api.state.stopping.cancel();
        };
        let (taken, waiting, ()) =
            tokio::join!(api.post("/api/v1/calls", call("taken")), api.post("/api/v1/calls", call("waiting")), stop);
        taken.problem(504, "call_timed_out", None);
        waiting.problem(503, "call_unavailable", None);
        let job = waiting.json()["job_id"].as_str().unwrap().to_owned();
        assert_eq!(api.get(&format!("/api/v1/jobs/{job}")).await.json()["state"], "canceled");
    })
    .await;
}
