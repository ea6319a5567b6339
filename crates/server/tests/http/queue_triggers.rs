//! T1, T5: what happens to queues starts work, and a trigger may be the worker of a queue's jobs.

use std::time::{Duration, Instant};

use domain::address::{Allowed, Private};
use domain::trigger::Source;
use domain::{JobId, TenantId, TriggerId};
use engine::EngineOptions;
use serde_json::{Value, json};
use store::events::Event;
use store::triggers::work::event_of;
use testkit::on_both;
use testkit::receiver::{Manner, Receiver};

use crate::api::{Api, request};

const TRIGGERS: &str = "/api/v1/triggers";

async fn create(api: &Api, trigger: Value) -> String {
    let answer = api.post(TRIGGERS, trigger).await;
    assert_eq!(answer.status, 201, "{:?}", answer.body);
    answer.json()["id"].as_str().unwrap().to_owned()
}

/// The answer once it is as it should be.
async fn until(api: &Api, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + crate::api::PATIENCE;
    loop {
        let answer = api.get(path).await.json();
        if is_so(&answer) {
            return answer;
        }
        assert!(Instant::now() < deadline, "{answer}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn items(page: &Value) -> &Vec<Value> {
    page["items"].as_array().unwrap()
}

/// What triggers told the queue `seen`, once there is this much of it, oldest first.
async fn told(api: &Api, many: usize) -> Vec<Value> {
    let page = until(api, "/api/v1/jobs?queue=seen&limit=100", |page| items(page).len() >= many).await;
    assert_eq!(items(&page).len(), many, "{page}");
    items(&page).iter().rev().map(|job| job["payload"].clone()).collect()
}

async fn ended(api: &Api, job: &str) -> Value {
    let is_over = |job: &Value| ["succeeded", "failed", "canceled"].contains(&job["state"].as_str().unwrap());
    until(api, &format!("/api/v1/jobs/{job}?wait=20s"), is_over).await
}

#[tokio::test]
async fn t1_what_is_done_to_a_queue_is_an_event_and_history_and_nothing_done_is_neither() {
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
        let told = told(&api, 4).await;
        let of =
            |op: &str| told.iter().find(|told| told["event"]["op"] == op).unwrap_or_else(|| panic!("{op}: {told:?}"));
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
        assert!(!history.to_string().contains("s3cret-path"), "a webhook's address may be a secret");
    })
    .await;
}

#[tokio::test]
async fn t5_a_trigger_that_fills_its_queue_whenever_it_is_drained_ends_at_the_depth_limit() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let again = json!({"name": "again", "source": "queue", "filter": {"queue": "a", "ops": ["drained"]},
                           "target": {"job": {"queue": "a", "kind": "k"}}});
        let again = create(&api, again).await;
        api.job("a").await;
        let deadline = Instant::now() + crate::api::PATIENCE;
        while api.get(&format!("{TRIGGERS}/{again}")).await.json()["loops_stopped"] == 0 {
            let page = api.get("/api/v1/jobs?queue=a&state=queued").await.json();
            for job in items(&page) {
                api.call("POST", &format!("/api/v1/jobs/{}/cancel", job["id"].as_str().unwrap())).await;
            }
            assert!(Instant::now() < deadline, "the loop goes on");
        }
        assert_eq!(api.job_count().await, 17, "the first, and sixteen that it led to");
    })
    .await;
}

#[tokio::test]
async fn t5_whoever_calls_back_passes_the_depth_on_to_what_it_makes() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let heard = json!({"name": "heard", "source": "queue", "filter": {"queue": "*", "ops": ["paused"]},
                           "target": {"job": {"queue": "seen", "kind": "k"}}});
        create(&api, heard).await;
        let deep = |method: &str, path: &str, body: Value| {
            let request =
                request(method, path).header("windlass-depth", "7").header("content-type", "application/json");
            request.body(axum::body::Body::from(body.to_string())).unwrap()
        };
        let job = api.ask(deep("POST", "/api/v1/jobs", json!({"queue": "q", "kind": "k"}))).await.json();
        assert_eq!(api.get(&format!("/api/v1/jobs/{}", job["id"].as_str().unwrap())).await.json()["depth"], 7);
        let batch = json!({"jobs": [{"queue": "q", "kind": "k", "tags": ["a"]}]});
        let ids = api.ask(deep("POST", "/api/v1/jobs/batch", batch)).await.json();
        assert_eq!(api.get(&format!("/api/v1/jobs/{}", ids["ids"][0].as_str().unwrap())).await.json()["depth"], 7);
        api.ask(deep("POST", "/api/v1/queues/q/pause", json!({}))).await;
        assert_eq!(told(&api, 1).await[0]["event"]["depth"], 7);
        let odd = request("POST", "/api/v1/jobs").header("windlass-depth", "deep");
        let odd = odd.header("content-type", "application/json").body(r#"{"queue": "q", "kind": "k"}"#.into()).unwrap();
        api.ask(odd).await.problem(400, "invalid_header", Some("Windlass-Depth"));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t1_a_trigger_is_the_worker_of_a_queue_and_its_outcome_is_the_jobs() {
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
        let done = ended(&api, &good).await;
        assert_eq!((&done["state"], &done["result"]), (&json!("succeeded"), &json!({"doubled": 8})));
        let failed = ended(&api, &bad).await;
        assert_eq!((&failed["state"], &failed["attempt"]), (&json!("failed"), &json!(2)), "{failed}");
        assert!(failed["error"]["message"].as_str().unwrap().contains("unlucky"), "{failed}");
        let letters = api.get("/api/v1/dead-letters").await.json();
        assert_eq!(items(&letters).len(), 1, "the job's own, and none of its runs: {letters}");
        assert_eq!((&items(&letters)[0]["job_id"], &items(&letters)[0]["attempt_count"]), (&json!(bad), &json!(2)));
        let more = api.get("/api/v1/jobs?queue=more").await.json();
        assert_eq!(items(&more).len(), 1, "one run did something: {more}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t1_what_was_handed_over_for_a_job_that_is_over_does_not_run() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let source = r#"enqueue(#{queue: "more", kind: "k"});"#;
        let works = json!({"name": "works", "source": "queue", "filter": {"queue": "q"}, "target": {"script": source}});
        let works = create(&api, works).await;
        let runs = format!("{TRIGGERS}/{works}/runs");
        // The dispatcher finds the row as it would after a trigger was off, or its node full, for a while.
        let hand_over = async |job: &str, attempt: i32| {
            let now = api.db.store.clock().now();
            let mut event = Event::new(now, TenantId::DEFAULT, Source::Queue, "job", 0, "{}".into());
            event.id = event_of(JobId::new(job.parse().unwrap()), attempt);
            let event = event.with("job_id", job).with("attempt", attempt.to_string());
            let id = event.id.to_string();
            api.db.store.hand_to_trigger(TriggerId::new(works.parse().unwrap()), event).await.unwrap();
            id
        };
        let canceled = api.job("idle").await;
        api.call("POST", &format!("/api/v1/jobs/{canceled}/cancel")).await;
        let (given_back, (held, ..)) = (api.job("idle").await, api.claimed("held").await);
        let cases = [(&canceled, 1, "skipped"), (&held, 0, "skipped"), (&held, 1, "done"), (&given_back, 1, "done")];
        for (job, attempt, outcome) in cases {
            let event = hand_over(job.as_str(), attempt).await;
            let of_it = |page: &Value| items(page).iter().find(|run| run["event_id"] == event.as_str()).cloned();
            let page = until(&api, &runs, |page| of_it(page).is_some()).await;
            assert_eq!(of_it(&page).unwrap()["outcome"], outcome, "{page}");
        }
        let more = api.get("/api/v1/jobs?queue=more").await.json();
        assert_eq!(items(&more).len(), 2, "{more}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t1_a_receiver_or_another_queue_works_the_jobs_too() {
    on_both(async |db| {
        let receiver = Receiver::start(Manner::Say(200, r#"{"ok": true}"#.into())).await;
        let allowed = Allowed { private: Private::Allowed, ..Allowed::default() };
        let api = Api::with_engine(db, EngineOptions { allowed, ..EngineOptions::default() }).await;
        let calls = json!({"name": "calls", "source": "queue", "filter": {"queue": "out"}, "target": {"http": {"url": receiver.url()}}});
        create(&api, calls).await;
        let passes = json!({"name": "passes", "source": "queue", "filter": {"queue": "in"},
                            "target": {"job": {"queue": "inner", "kind": "k", "payload": {"was": "{{ data.n }}"}}}});
        create(&api, passes).await;
        let sent = api.job("out").await;
        let done = ended(&api, &sent).await;
        assert_eq!((&done["state"], &done["result"]["status"]), (&json!("succeeded"), &json!(200)), "{done}");
        let body: Value = serde_json::from_str(&receiver.saw(1).await[0].body).unwrap();
        assert_eq!((&body["data"]["n"], &body["event"]["job_id"]), (&json!(1), &json!(sent)));
        receiver.behave(Manner::Answer(500));
        let once = json!({"queue": "out", "kind": "k", "max_attempts": 1});
        let refused = api.post("/api/v1/jobs", once).await.json()["id"].as_str().unwrap().to_owned();
        let failed = ended(&api, &refused).await;
        assert_eq!((&failed["state"], &failed["error"]["code"]), (&json!("failed"), &json!("delivery_failed")));
        assert_eq!(items(&api.get("/api/v1/dead-letters").await.json()).len(), 1, "the job's own");
        let passed = api.job("in").await;
        let (inner, worker) = (until(&api, "/api/v1/jobs?queue=inner", |page| items(page).len() == 1).await, api.worker("inner").await);
        assert_eq!(items(&inner)[0]["payload"], json!({"was": 1}));
        let claim = api.post(&format!("/api/v1/workers/{worker}/claim"), json!({"max": 1})).await.json();
        let (id, epoch) = (&claim["jobs"][0]["id"], &claim["jobs"][0]["epoch"]);
        api.settle(&worker, json!({"job_id": id, "epoch": epoch, "outcome": "finish", "result": "inner"})).await;
        assert_eq!(ended(&api, &passed).await["result"], "inner");
    })
    .await;
}

#[tokio::test]
async fn x10_a_trigger_on_queues_that_cannot_be_taken_names_its_field() {
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
