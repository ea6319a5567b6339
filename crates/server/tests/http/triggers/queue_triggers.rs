//! Triggers on queue events, and triggers that work the jobs of a queue.

use domain::address::{Allowed, Private};
use domain::triggers::trigger::Source;
use domain::{JobId, TenantId, TriggerId};
use engine::EngineOptions;
use serde_json::{Value, json};
use store::triggers::events::Event;
use store::triggers::work::attempt_event_id;
use testkit::eventually::wait_until;
use testkit::on_both;
use testkit::receiver::{Behavior, Receiver};

use crate::api::{Api, request};

const TRIGGERS: &str = "/api/v1/triggers";

async fn create(api: &Api, trigger: Value) -> String {
    let response = api.post(TRIGGERS, trigger).await;
    assert_eq!(response.status, 201, "{:?}", response.body);
    response.json()["id"].as_str().unwrap().to_owned()
}

fn items(page: &Value) -> &Vec<Value> {
    page["items"].as_array().unwrap()
}

/// Waits for exactly `count` jobs in the queue `seen` and returns their payloads, oldest first.
async fn payloads(api: &Api, count: usize) -> Vec<Value> {
    let page = api.get_when("/api/v1/jobs?queue=seen&limit=100", |page| items(page).len() >= count).await;
    assert_eq!(items(&page).len(), count, "{page}");
    items(&page).iter().rev().map(|job| job["payload"].clone()).collect()
}

/// Requirement T1.
#[tokio::test]
async fn each_queue_change_is_an_event_and_history_and_a_no_op_is_neither() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let target = json!({"job": {"queue": "seen", "kind": "k"}});
        let ops = json!(["paused", "resumed", "changed", "drained"]);
        create(
            &api,
            json!({"name": "any", "source": "queue", "filter": {"queue": "ma*", "ops": ops}, "target": target}),
        )
        .await;
        let path = "/api/v1/queues/mail";
        api.post(&format!("{path}/pause"), json!({"reason": "deploy"})).await;
        api.post(&format!("{path}/pause"), json!({"reason": "deploy goes on"})).await;
        api.call("POST", &format!("{path}/resume")).await;
        api.call("POST", &format!("{path}/resume")).await;
        let settings = json!({"concurrency": 2, "webhook": {"url": "https://example.com/s3cret-path"}});
        assert_eq!(api.put(path, settings.clone()).await.status, 200);
        assert_eq!(api.put(path, settings).await.status, 200);
        api.post("/api/v1/queues/other/pause", json!({})).await;
        let (job, worker, epoch) = api.claimed("mail").await;
        api.settle(&worker, json!({"job_id": job, "epoch": epoch, "outcome": "finish"})).await;
        let payloads = payloads(&api, 4).await;
        let of = |op: &str| {
            payloads.iter().find(|payload| payload["event"]["op"] == op).unwrap_or_else(|| panic!("{op}: {payloads:?}"))
        };
        for op in ["paused", "resumed", "changed", "drained"] {
            assert_eq!((&of(op)["event"]["source"], &of(op)["event"]["queue"]), (&json!("queue"), &json!("mail")));
        }
        assert_eq!((&of("paused")["data"]["reason"], &of("paused")["data"]["by"]), (&json!("deploy"), &json!("local")));
        let changed = &of("changed")["data"];
        assert_eq!((&changed["changed"], &changed["concurrency"]), (&json!(["concurrency", "webhook"]), &json!(2)));
        assert_eq!(of("drained")["data"]["succeeded"], 1);
        let history = api.get("/api/v1/history").await.json();
        let events: Vec<(&str, &str)> = items(&history)
            .iter()
            .rev()
            .filter(|item| item["detail"]["queue"] == "mail")
            .map(|item| (item["event"].as_str().unwrap(), item["actor"].as_str().unwrap()))
            .collect();
        let local = |event| (event, "local");
        assert_eq!(events, ["queue_paused", "queue_paused", "queue_resumed", "queue_changed"].map(local));
        assert!(!history.to_string().contains("s3cret-path"), "a webhook URL may contain a secret");
    })
    .await;
}

/// Requirement T5.
#[tokio::test]
async fn a_trigger_that_refills_its_drained_queue_ends_at_the_depth_limit() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let again = json!({"name": "again", "source": "queue", "filter": {"queue": "a", "ops": ["drained"]},
                           "target": {"job": {"queue": "a", "kind": "k"}}});
        let again = create(&api, again).await;
        api.job("a").await;
        wait_until("the loop is stopped", async || {
            let page = api.get("/api/v1/jobs?queue=a&state=queued").await.json();
            for job in items(&page) {
                api.call("POST", &format!("/api/v1/jobs/{}/cancel", job["id"].as_str().unwrap())).await;
            }
            api.get(&format!("{TRIGGERS}/{again}")).await.json()["loops_stopped"] != 0
        })
        .await;
        assert_eq!(api.job_count().await, 17, "the first job and one for each of sixteen levels");
    })
    .await;
}

/// Requirement T5.
#[tokio::test]
async fn the_depth_header_is_applied_to_created_jobs_and_events() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let seen = json!({"name": "seen", "source": "queue", "filter": {"queue": "*", "ops": ["paused"]},
                          "target": {"job": {"queue": "seen", "kind": "k"}}});
        create(&api, seen).await;
        let deep = |method: &str, path: &str, body: Value| {
            let request =
                request(method, path).header("windlass-depth", "7").header("content-type", "application/json");
            request.body(axum::body::Body::from(body.to_string())).unwrap()
        };
        let job = api.send(deep("POST", "/api/v1/jobs", json!({"queue": "q", "kind": "k"}))).await.json();
        assert_eq!(api.get(&format!("/api/v1/jobs/{}", job["id"].as_str().unwrap())).await.json()["depth"], 7);
        let batch = json!({"jobs": [{"queue": "q", "kind": "k", "tags": ["a"]}]});
        let ids = api.send(deep("POST", "/api/v1/jobs/batch", batch)).await.json();
        assert_eq!(api.get(&format!("/api/v1/jobs/{}", ids["ids"][0].as_str().unwrap())).await.json()["depth"], 7);
        api.send(deep("POST", "/api/v1/queues/q/pause", json!({}))).await;
        assert_eq!(payloads(&api, 1).await[0]["event"]["depth"], 7);
        let odd = request("POST", "/api/v1/jobs").header("windlass-depth", "deep");
        let odd = odd.header("content-type", "application/json").body(r#"{"queue": "q", "kind": "k"}"#.into()).unwrap();
        api.send(odd).await.problem(400, "invalid_header", Some("Windlass-Depth"));
    })
    .await;
}

/// Requirement T1.
#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_works_a_queue_and_its_outcome_is_the_outcome_of_the_job() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let source =
            r#"if data.n == 13 { throw "unlucky" } enqueue(#{queue: "more", kind: "k"}); #{doubled: data.n * 2}"#;
        let works = json!({"name": "works", "source": "queue", "filter": {"queue": "q"}, "target": {"script": source}});
        create(&api, works).await;
        let push = async |n: i64| {
            let job =
                json!({"queue": "q", "kind": "k", "payload": {"n": n}, "max_attempts": 2, "retry": {"initial_s": 0}});
            api.post("/api/v1/jobs", job).await.json()["id"].as_str().unwrap().to_owned()
        };
        let (good, bad) = (push(4).await, push(13).await);
        let done = api.ended(&good).await;
        assert_eq!((&done["state"], &done["result"]), (&json!("succeeded"), &json!({"doubled": 8})));
        let failed = api.ended(&bad).await;
        assert_eq!((&failed["state"], &failed["attempt"]), (&json!("failed"), &json!(2)), "{failed}");
        assert!(failed["error"]["message"].as_str().unwrap().contains("unlucky"), "{failed}");
        let letters = api.get("/api/v1/dead-letters").await.json();
        assert_eq!(items(&letters).len(), 1, "the job has a dead letter, its runs have none: {letters}");
        assert_eq!((&items(&letters)[0]["job_id"], &items(&letters)[0]["attempt_count"]), (&json!(bad), &json!(2)));
        let more = api.get("/api/v1/jobs?queue=more").await.json();
        assert_eq!(items(&more).len(), 1, "only one run succeeded: {more}");
    })
    .await;
}

/// Requirement T1.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_trigger_run_of_an_ended_job_does_not_run() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let source = r#"enqueue(#{queue: "more", kind: "k"});"#;
        let works = json!({"name": "works", "source": "queue", "filter": {"queue": "q"}, "target": {"script": source}});
        let works = create(&api, works).await;
        let runs = format!("{TRIGGERS}/{works}/runs");
        // Simulates a dispatch that was delayed because the trigger was disabled or its node busy.
        let enqueue_run = async |job: &str, attempt: i32| {
            let now = api.db.store.clock().now();
            let mut event = Event::new(now, TenantId::DEFAULT, Source::Queue, "job", 0, "{}".into());
            event.id = attempt_event_id(JobId::new(job.parse().unwrap()), attempt);
            let event = event.with("job_id", job).with("attempt", attempt.to_string());
            let id = event.id.to_string();
            api.db.store.enqueue_worker_run(TriggerId::new(works.parse().unwrap()), event).await.unwrap();
            id
        };
        let canceled = api.job("idle").await;
        api.call("POST", &format!("/api/v1/jobs/{canceled}/cancel")).await;
        let (queued, (held, ..)) = (api.job("idle").await, api.claimed("held").await);
        let cases = [(&canceled, 1, "skipped"), (&held, 0, "skipped"), (&held, 1, "done"), (&queued, 1, "done")];
        for (job, attempt, outcome) in cases {
            let event = enqueue_run(job.as_str(), attempt).await;
            let run_of = |page: &Value| items(page).iter().find(|run| run["event_id"] == event.as_str()).cloned();
            let page = api.get_when(&runs, |page| run_of(page).is_some()).await;
            assert_eq!(run_of(&page).unwrap()["outcome"], outcome, "{page}");
        }
        let more = api.get("/api/v1/jobs?queue=more").await.json();
        assert_eq!(items(&more).len(), 2, "{more}");
    })
    .await;
}

/// Requirement T1.
#[tokio::test(flavor = "multi_thread")]
async fn an_http_endpoint_or_another_queue_can_work_a_queue() {
    on_both(async |db| {
        let receiver = Receiver::start(Behavior::RespondWith(200, r#"{"ok": true}"#.into())).await;
        let allowed = Allowed { private: Private::Allowed, ..Allowed::default() };
        let api = Api::with_engine(db, EngineOptions { allowed, ..EngineOptions::default() }).await;
        let calls = json!({"name": "calls", "source": "queue", "filter": {"queue": "out"}, "target": {"http": {"url": receiver.url()}}});
        create(&api, calls).await;
        let passes = json!({"name": "passes", "source": "queue", "filter": {"queue": "in"},
                            "target": {"job": {"queue": "inner", "kind": "k", "payload": {"was": "{{ data.n }}"}}}});
        create(&api, passes).await;
        let sent = api.job("out").await;
        let done = api.ended(&sent).await;
        assert_eq!((&done["state"], &done["result"]["status"]), (&json!("succeeded"), &json!(200)), "{done}");
        let body: Value = serde_json::from_str(&receiver.wait_for(1).await[0].body).unwrap();
        assert_eq!((&body["data"]["n"], &body["event"]["job_id"]), (&json!(1), &json!(sent)));
        receiver.set_behavior(Behavior::Respond(500));
        let once = json!({"queue": "out", "kind": "k", "max_attempts": 1});
        let refused = api.post("/api/v1/jobs", once).await.json()["id"].as_str().unwrap().to_owned();
        let failed = api.ended(&refused).await;
        assert_eq!((&failed["state"], &failed["error"]["code"]), (&json!("failed"), &json!("delivery_failed")));
        assert_eq!(items(&api.get("/api/v1/dead-letters").await.json()).len(), 1, "only the job has a dead letter");
        let passed = api.job("in").await;
        let inner = api.get_when("/api/v1/jobs?queue=inner", |page| items(page).len() == 1).await;
        let worker = api.worker("inner").await;
        assert_eq!(items(&inner)[0]["payload"], json!({"was": 1}));
        let claim = api.post(&format!("/api/v1/workers/{worker}/claim"), json!({"max": 1})).await.json();
        let (id, epoch) = (&claim["jobs"][0]["id"], &claim["jobs"][0]["epoch"]);
        api.settle(&worker, json!({"job_id": id, "epoch": epoch, "outcome": "finish", "result": "inner"})).await;
        assert_eq!(api.ended(&passed).await["result"], "inner");
    })
    .await;
}

/// Requirement X10.
#[tokio::test]
async fn an_invalid_queue_trigger_names_the_field() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let with =
            |filter: Value, target: Value| json!({"name": "t", "source": "queue", "filter": filter, "target": target});
        let job = json!({"job": {"queue": "q", "kind": "k"}});
        let runtime = |target: Value| with(json!({"queue": "q", "ops": ["paused"]}), json!({"runtime": target}));
        for (body, field) in [
            (with(json!({}), job.clone()), "filter.queue"),
            (with(json!({"queue": "*"}), job.clone()), "filter.queue"),
            (with(json!({"queue": "q", "when": "true"}), job.clone()), "filter.when"),
            (with(json!({"queue": "q", "ops": ["emptied"]}), job.clone()), "filter.ops"),
            (runtime(json!({"name": "a", "operation": "explode"})), "target.runtime.operation"),
            (runtime(json!({"name": "a/b", "operation": "start"})), "target.runtime.name"),
            (runtime(json!({"name": "a", "operation": "patch"})), "target.runtime.image"),
            (runtime(json!({"name": "a", "operation": "stop", "image": "x:1.2.3"})), "target.runtime.image"),
            (runtime(json!({"name": "a", "operation": "start", "image": "a b"})), "target.runtime.image"),
            (runtime(json!({"name": "{{ event. }}", "operation": "start"})), "target.runtime.name"),
        ] {
            api.post(TRIGGERS, body.clone()).await.problem(422, "invalid_field", Some(field));
        }
        let mut waits = with(json!({"queue": "q"}), job);
        waits["mode"] = json!("async");
        api.post(TRIGGERS, waits).await.problem(422, "invalid_field", Some("mode"));
    })
    .await;
}
