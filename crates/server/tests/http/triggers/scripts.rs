//! Scripts as targets of triggers, and the rights of a trigger's principal, with a running engine.

use axum::body::Body;
use domain::address::{Allowed, Private};
use engine::{Engine, EngineOptions};
use serde_json::{Value, json};
use testkit::on_both;
use testkit::receiver::{Behavior, Receiver};

use crate::api::{Api, request};

const TRIGGERS: &str = "/api/v1/triggers";

fn script(topic: &str, source: &str) -> Value {
    json!({"name": format!("script on {topic}"), "source": "pubsub", "filter": {"topic": topic},
           "target": {"script": source}, "retry": {"max_attempts": 2, "initial_s": 0}})
}

async fn create(api: &Api, trigger: Value) -> String {
    let response = api.post(TRIGGERS, trigger).await;
    assert_eq!(response.status, 201, "{:?}", response.body);
    response.json()["id"].as_str().unwrap().to_owned()
}

fn item_count(page: &Value) -> usize {
    page["items"].as_array().unwrap().len()
}

/// Waits for at least `count` runs of a trigger and returns them, newest first.
async fn runs(api: &Api, trigger: &str, count: usize) -> Vec<Value> {
    let page = api.get_when(&format!("{TRIGGERS}/{trigger}/runs"), |page| item_count(page) >= count).await;
    page["items"].as_array().unwrap().clone()
}

/// Requirement T11.
#[tokio::test]
async fn script_effects_apply_when_the_script_ends_and_its_log_is_stored() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let said = json!({"name": "said", "source": "pubsub", "filter": {"topic": "said"},
                          "target": {"job": {"queue": "said", "kind": "k"}}});
        create(&api, said).await;
        api.put("/api/v1/kv/seen/old", json!(1)).await;
        let source = r#"
            let n = kv_get("seen", "count");
            if n == () { n = 0; }
            kv_set("seen", "count", n + data.n);
            log("it was " + n + ", it is " + kv_get("seen", "count"));
            let gone = kv_delete("seen", "old");
            let id = enqueue(#{queue: "made", kind: "k", payload: #{topic: event.topic}, priority: 3, delay_s: 0});
            publish("said", #{id: id, gone: gone, again: kv_delete("seen", "old")});
            n + data.n
        "#;
        let id = create(&api, script("t", source)).await;
        let event = api.post("/api/v1/topics/t", json!({"n": 7})).await.json()["event_id"].clone();
        let run = runs(&api, &id, 1).await.remove(0);
        assert_eq!((&run["outcome"], &run["result"], &run["event_id"]), (&json!("done"), &json!(7), &event), "{run}");
        assert_eq!(run["log"], json!(["it was 0, it is 7"]));
        assert_eq!(run["script_id"], api.get(&format!("{TRIGGERS}/{id}")).await.json()["script_id"]);
        assert_eq!(api.get("/api/v1/kv/seen/count").await.json()["value"], 7);
        api.get("/api/v1/kv/seen/old").await.problem(404, "not_found", None);
        let made = api.get("/api/v1/jobs?queue=made").await.json()["items"][0].clone();
        assert_eq!((&made["payload"], &made["priority"]), (&json!({"topic": "t"}), &json!(3)));
        assert_eq!((&made["depth"], &made["principal"]), (&json!(1), &json!("local")));
        assert!(made["triggered_by"].as_str().unwrap().starts_with(&format!("script:{id}:")), "{made}");
        // Pages show the log of the run and the trigger of the job.
        let shown = async |path: String| String::from_utf8(api.get(&path).await.body.to_vec()).unwrap();
        assert!(shown(format!("/triggers/{id}")).await.contains("it was 0, it is 7"));
        let page = shown(format!("/jobs/{}", made["id"].as_str().unwrap())).await;
        assert!(page.contains(&format!("script <a href=\"../triggers/{id}\">script on t</a>, pubsub")), "{page}");
        let page = api.get_when("/api/v1/jobs?queue=said", |page| item_count(page) == 1).await;
        let payload = &page["items"][0]["payload"];
        assert_eq!(payload["data"], json!({"id": made["id"], "gone": true, "again": false}));
        assert_eq!(payload["event"]["depth"], 1, "an event of a script is one level deeper");
        assert_eq!(api.db.store.verify().await.unwrap().findings, []);
    })
    .await;
}

/// Requirement T11.
#[tokio::test]
async fn concurrent_scripts_lose_no_counter_update() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let other = Engine::start(api.db.store.clone(), EngineOptions::default()).await.unwrap();
        let source = r#"let n = kv_get("c", "n"); kv_set("c", "n", if n == () { 1 } else { n + 1 });"#;
        let id = create(&api, script("t", source)).await;
        let event = |n: usize| json!({"specversion": "1.0", "id": n.to_string(), "source": "/s", "type": "t"});
        let batch = Value::Array((0..40).map(event).collect());
        let sent = request("POST", "/api/v1/events").header("content-type", "application/cloudevents-batch+json");
        assert_eq!(api.send(sent.body(Body::from(batch.to_string())).unwrap()).await.status, 202);
        runs(&api, &id, 40).await;
        assert_eq!(api.get("/api/v1/kv/c/n").await.json()["value"], 40);
        assert_eq!(api.get("/api/v1/dead-letters/count").await.json()["count"], 0);
        other.stop().await;
    })
    .await;
}

/// Requirement T11.
#[tokio::test]
async fn a_failed_script_has_no_effects_and_leaves_one_dead_letter() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let source =
            r#"kv_set("c", "k", 1); enqueue(#{queue: "q", kind: "k"}); publish("p", 1); log("so far"); throw "no""#;
        let id = create(&api, script("t", source)).await;
        api.post("/api/v1/topics/t", json!({"a": 1})).await;
        let letters = format!("/api/v1/dead-letters?trigger_id={id}");
        let page = api.get_when(&letters, |page| item_count(page) == 1).await;
        let letter = &page["items"][0];
        assert_eq!((&letter["last_error"]["code"], &letter["attempt_count"]), (&json!("script_failed"), &json!(2)));
        assert_eq!(letter["script_id"], api.get(&format!("{TRIGGERS}/{id}")).await.json()["script_id"]);
        let tries = runs(&api, &id, 2).await;
        assert_eq!((tries.len(), &tries[0]["attempt"], &tries[1]["attempt"]), (2, &json!(2), &json!(1)));
        assert_eq!((&tries[0]["log"], &tries[0]["outcome"]), (&json!(["so far"]), &json!("failed")));
        api.get("/api/v1/kv/c/k").await.problem(404, "not_found", None);
        assert_eq!(api.job_count().await, 0);
        // A dead letter can be replayed after the script is fixed.
        let mut fixed = script("t", r#"enqueue(#{queue: "q", kind: "k", payload: data})"#);
        fixed["name"] = json!("fixed");
        assert_eq!(api.put(&format!("{TRIGGERS}/{id}"), fixed).await.status, 200);
        let replay = format!("/api/v1/dead-letters/{}/replay", letter["id"].as_str().unwrap());
        assert_eq!(api.post(&replay, json!({})).await.status, 202);
        let page = api.get_when("/api/v1/jobs?queue=q", |page| item_count(page) == 1).await;
        assert_eq!(page["items"][0]["payload"], json!({"a": 1}));
    })
    .await;
}

/// Requirement T11.
#[tokio::test]
async fn endless_scripts_are_stopped_without_blocking_other_triggers() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let mut ids = Vec::new();
        for (number, source) in ["loop { }", "fn f() { f() } f()", "let s = \"x\"; loop { s += s; }"].iter().enumerate()
        {
            let mut trigger = script("t", source);
            trigger["name"] = json!(format!("endless {number}"));
            ids.push(create(&api, trigger).await);
        }
        let job = json!({"name": "beside", "source": "pubsub", "filter": {"topic": "t"},
                         "target": {"job": {"queue": "beside", "kind": "k"}}});
        create(&api, job).await;
        api.post("/api/v1/topics/t", json!({})).await;
        api.get_when("/api/v1/jobs?queue=beside", |page| item_count(page) == 1).await;
        for id in ids {
            let run = runs(&api, &id, 1).await.remove(0);
            assert_eq!(run["error"]["code"], "script_ceiling", "{run}");
            let letters = api.get(&format!("/api/v1/dead-letters?trigger_id={id}")).await.json();
            assert_eq!((item_count(&letters), &letters["items"][0]["attempt_count"]), (1, &json!(1)), "not retried");
        }
    })
    .await;
}

/// Requirement T11.
#[tokio::test]
async fn script_requests_pass_through_the_outbound_guard() {
    on_both(async |db| {
        let private = Allowed { private: Private::Allowed, ..Allowed::default() };
        let api = Api::with_engine(db, EngineOptions { allowed: private, ..EngineOptions::default() }).await;
        let receiver = Receiver::start(Behavior::RespondWith(201, "made".into())).await;
        let url = format!("http://{}/path", receiver.address);
        let source = format!(
            r#"let answer = http(#{{url: "{url}", body: data, headers: #{{"x-a": "b"}}}}); [answer.status, answer.body]"#
        );
        let id = create(&api, script("t", &source)).await;
        api.post("/api/v1/topics/t", json!({"n": 1})).await;
        let run = runs(&api, &id, 1).await.remove(0);
        assert_eq!(run["result"], json!([201, "made"]), "{run}");
        let seen = receiver.requests();
        assert_eq!((seen[0].method.as_str(), seen[0].body.as_str()), ("POST", r#"{"n":1}"#));
        assert_eq!((seen[0].header("x-a"), seen[0].header("windlass-depth")), (Some("b"), Some("1")));
        let forged = format!(r#"http(#{{url: "{url}", headers: #{{"Windlass-Depth": "0"}}}})"#);
        let id = create(&api, script("forged", &forged)).await;
        api.post("/api/v1/topics/forged", json!(1)).await;
        let run = runs(&api, &id, 1).await.remove(0);
        assert!(run["error"]["message"].as_str().unwrap().contains("must not set the header"), "{run}");
        assert_eq!(receiver.requests().len(), 1);
    })
    .await;
}

/// Requirement T11.
#[tokio::test]
async fn a_script_cannot_reach_private_addresses_by_default() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let receiver = Receiver::start(Behavior::Respond(200)).await;
        let id = create(&api, script("t", &format!(r#"http(#{{url: "http://{}/"}})"#, receiver.address))).await;
        api.post("/api/v1/topics/t", json!(1)).await;
        let run = runs(&api, &id, 1).await.remove(0);
        assert_eq!((&run["outcome"], receiver.connections()), (&json!("failed"), 0), "{run}");
    })
    .await;
}

/// Requirement T8.
#[tokio::test]
async fn a_script_handles_dead_letters_and_resolves_them() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let handler = json!({"name": "handler", "source": "dead_letter", "handles": true, "filter": {"source": "job"}, "target": {"script":
            r#"if data.queue == "fails" { throw "cannot" } kv_set("dead", data.id, data.last_error.code); resolve(data.id, "seen")"#}});
        create(&api, handler).await;
        for (queue, expected) in [("q", "handled_by_script"), ("fails", "handler_failed")] {
            let (job, worker, epoch) = api.claimed(queue).await;
            let error = json!({"code": "boom", "retryable": false});
            api.settle(&worker, json!({"job_id": job, "epoch": epoch, "outcome": "fail", "error": error})).await;
            let path = format!("/api/v1/dead-letters?job_id={job}");
            let page = api.get_when(&path, |page| !page["items"][0]["resolution"].is_null()).await;
            let letter = &page["items"][0];
            assert_eq!(letter["resolution"], expected);
            if queue == "q" {
                assert_eq!(letter["note"], "seen");
                let key = format!("/api/v1/kv/dead/{}", letter["id"].as_str().unwrap());
                assert_eq!(api.get(&key).await.json()["value"], "boom");
            }
        }
        assert_eq!(api.get("/api/v1/dead-letters/count").await.json()["count"], 2, "handlers create no dead letter");
    })
    .await;
}

/// Requirement T11.
#[tokio::test]
async fn a_script_job_with_a_process_requires_a_subject() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let id = create(&api, script("t", r#"enqueue(#{queue: "q", kind: "k", process: "scrub"})"#)).await;
        api.post("/api/v1/topics/t", json!({})).await;
        let letters = format!("/api/v1/dead-letters?trigger_id={id}");
        let page = api.get_when(&letters, |page| item_count(page) == 1).await;
        let message = page["items"][0]["last_error"]["message"].as_str().unwrap();
        assert!(message.contains("enqueue: process requires a subject"), "{message}");
    })
    .await;
}

/// Requirement T8.
#[tokio::test]
async fn a_script_resolve_note_is_validated() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let id = create(&api, script("t", r#"resolve("01890a5d-ac96-774b-bcce-b302099a8057", "a\x00")"#)).await;
        let tried = api.post(&format!("{TRIGGERS}/{id}/fire"), json!({"dry_run": true})).await.json();
        let reason = tried["dry_run"]["reason"].as_str().unwrap();
        assert!(reason.contains("note contains the control character U+0000"), "{reason}");
    })
    .await;
}

/// Requirement T2.
#[tokio::test]
async fn a_script_dry_run_shows_its_effects_and_applies_none() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let source = r#"kv_set("c", "k", data.n); enqueue(#{queue: "q", kind: "k"}); publish("p", [1]); log("tried"); data.n + 1"#;
        let id = create(&api, script("t", source)).await;
        let fire = format!("{TRIGGERS}/{id}/fire");
        let tried = api.post(&fire, json!({"dry_run": true, "data": {"n": 1}})).await.json()["dry_run"].clone();
        let expected = json!({"matches": true, "payload": 2, "log": ["tried"],
                              "effects": ["set c k 1", "enqueue q k null", "publish p [1]"]});
        assert_eq!(tried, expected);
        assert_eq!(api.job_count().await, 0);
        api.get("/api/v1/kv/c/k").await.problem(404, "not_found", None);
        let mut bad = script("bad", "let x = ;");
        api.post(TRIGGERS, bad.clone()).await.problem(422, "invalid_field", Some("target.script"));
        bad["target"]["script"] = json!("x".repeat(1 << 17));
        api.post(TRIGGERS, bad).await.problem(422, "invalid_field", Some("target.script"));
    })
    .await;
}

/// Requirement T2.
#[tokio::test]
async fn a_trigger_run_has_its_principals_rights_until_they_are_revoked() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let root = api.caller(json!({"name": "root", "role": "admin"})).await;
        let ann = api.caller(json!({"name": "ann", "role": "operator", "rights": ["manage_triggers"]})).await;
        let tokens = root.get("/api/v1/tokens").await.json();
        let of_ann = tokens["items"].as_array().unwrap().iter().find(|token| token["name"] == "ann").unwrap();
        let job = |name: &str, source: &str, filter: Value, target: Value| {
            json!({"name": name, "source": source, "filter": filter, "target": target})
        };
        let into = json!({"job": {"queue": "made", "kind": "k"}});
        let made = ann.post(TRIGGERS, job("jobs", "kv", json!({"collection": "c"}), into.clone())).await;
        assert_eq!(made.status, 201, "{:?}", made.body);
        // Ann may not read payloads, so her triggers may not send them elsewhere.
        let out = json!({"http": {"url": "https://example.com/"}});
        let refused = ann.post(TRIGGERS, job("out", "kv", json!({"collection": "c"}), out)).await;
        refused.problem(403, "forbidden", None);
        let viewer = api.caller(json!({"name": "vic", "role": "viewer", "rights": ["manage_triggers"]})).await;
        viewer.post(TRIGGERS, job("v", "pubsub", json!({"topic": "t"}), into)).await.problem(403, "forbidden", None);
        let read = json!({"script": "kv_get(\"c\", \"k\")"});
        let script = ann.post(TRIGGERS, job("reads", "pubsub", json!({"topic": "t"}), read)).await;
        assert_eq!(script.status, 201, "{:?}", script.body);
        let script = script.json()["id"].as_str().unwrap().to_owned();
        root.post("/api/v1/topics/t", json!(1)).await;
        let path = format!("{TRIGGERS}/{script}/runs");
        // The run is retried after some seconds, so there may be more than one.
        let page = root.get_when(&path, |page| item_count(page) >= 1).await;
        let message = page["items"][0]["error"]["message"].as_str().unwrap();
        assert!(message.contains("ann lacks the right read_payloads"), "{message}");

        root.put("/api/v1/kv/c/k", json!(1)).await;
        root.get_when("/api/v1/jobs?queue=made", |page| item_count(page) == 1).await;
        assert_eq!(root.delete(&format!("/api/v1/tokens/{}", of_ann["id"].as_str().unwrap())).await.status, 204);
        root.put("/api/v1/kv/c/k", json!(2)).await;
        let id = made.json()["id"].as_str().unwrap().to_owned();
        let letters = format!("/api/v1/dead-letters?trigger_id={id}");
        let page = root.get_when(&letters, |page| item_count(page) == 1).await;
        assert_eq!(page["items"][0]["last_error"]["code"], "forbidden");
        assert_eq!(item_count(&root.get("/api/v1/jobs?queue=made").await.json()), 1);
        // After another user takes over the trigger, its dead letters can be replayed.
        let shown = root.get(&format!("{TRIGGERS}/{id}")).await.json();
        let taken_over = job("jobs", "kv", shown["filter"].clone(), shown["target"].clone());
        assert_eq!(root.put(&format!("{TRIGGERS}/{id}"), taken_over).await.json()["principal"], "root");
        let replay = format!("/api/v1/dead-letters/{}/replay", page["items"][0]["id"].as_str().unwrap());
        assert_eq!(root.post(&replay, json!({})).await.status, 202);
        root.get_when("/api/v1/jobs?queue=made", |page| item_count(page) == 2).await;
    })
    .await;
}

/// Requirement X7.
#[tokio::test]
async fn error_messages_of_triggers_require_the_right_to_read_logs() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let root = api.caller(json!({"name": "root", "role": "admin"})).await;
        let viewer = api.caller(json!({"name": "v", "role": "viewer"})).await;
        let trigger = json!({"name": "t", "source": "kv", "filter": {"collection": "c"},
            "target": {"script": "throw data.to_string()"}, "retry": {"max_attempts": 1}});
        let made = root.post(TRIGGERS, trigger).await.json();
        root.put("/api/v1/kv/c/k", json!({"password": "hunter2"})).await;
        let path = format!("{TRIGGERS}/{}", made["id"].as_str().unwrap());
        let whole = root.get_when(&path, |trigger| !trigger["last_error"].is_null()).await;
        assert!(whole["last_error"].as_str().unwrap().contains("hunter2"), "{whole}");
        assert_eq!(viewer.get(&path).await.json()["last_error"], "script_failed");
        let page = path.replace("/api/v1", "");
        for path in [TRIGGERS, &path, &page, "/triggers"] {
            let response = viewer.get(path).await;
            assert_eq!(response.status, 200, "{path}");
            assert!(!String::from_utf8_lossy(&response.body).contains("hunter2"), "{path}");
        }
    })
    .await;
}

/// Requirement T2.
#[tokio::test]
async fn a_sync_trigger_returns_its_result_to_the_publisher() {
    on_both(async |db| {
        let private = Allowed { private: Private::Allowed, ..Allowed::default() };
        let api = Api::with_engine(db, EngineOptions { allowed: private, ..EngineOptions::default() }).await;
        let sync = |name: &str, source: &str, filter: Value, target: Value| {
            json!({"name": name, "source": source, "filter": filter, "target": target, "mode": "sync"})
        };
        let adds = json!({"script": "if data.n < 0 { throw \"too small\" } data.n + 1"});
        let id = create(&api, sync("adds", "pubsub", json!({"topic": "t"}), adds.clone())).await;
        let response = api.post("/api/v1/topics/t", json!({"n": 1})).await.json();
        let run = &response["runs"][0];
        assert_eq!((&run["state"], &run["result"], &run["trigger_id"]), (&json!("succeeded"), &json!(2), &json!(id)));
        let failed = api.post("/api/v1/topics/t", json!({"n": -1})).await.json();
        assert_eq!(failed["runs"][0]["state"], "failed", "{failed}");
        assert_eq!(failed["runs"][0]["error"]["code"], "script_failed");
        let letters = api.get(&format!("/api/v1/dead-letters?trigger_id={id}")).await.json();
        assert_eq!((item_count(&letters), &letters["items"][0]["attempt_count"]), (1, &json!(1)), "attempted once");
        let other = api.post("/api/v1/topics/other", json!(1)).await.json();
        assert!(other.get("runs").is_none(), "no sync trigger has this topic");

        let hook = create(&api, sync("hook", "http", json!({}), adds)).await;
        let response = api.post(&format!("/api/v1/hooks/{hook}"), json!({"n": 5})).await.json();
        assert_eq!(response["runs"][0]["result"], 6, "{response}");
        let refused = api.post(&format!("/api/v1/hooks/{hook}"), json!({"n": -5})).await;
        refused.problem(502, "call_failed", None);
        assert!(refused.json()["detail"].as_str().unwrap().contains("too small"), "{:?}", refused.body);
        let letters = api.get(&format!("/api/v1/dead-letters?trigger_id={hook}")).await.json();
        assert_eq!(item_count(&letters), 0, "the caller got the error");
        let fired = api.post(&format!("{TRIGGERS}/{hook}/fire"), json!({"data": {"n": 6}})).await.json();
        assert_eq!(fired["runs"][0]["result"], 7, "{fired}");

        let receiver = Receiver::start(Behavior::Respond(200)).await;
        let calls = json!({"http": {"url": receiver.url()}});
        create(&api, sync("calls", "kv", json!({"collection": "c"}), calls)).await;
        let response = api.put("/api/v1/kv/c/k", json!(1)).await.json();
        assert_eq!((&response["runs"][0]["state"], receiver.requests().len()), (&json!("succeeded"), 1), "{response}");

        let into = json!({"job": {"queue": "sync", "kind": "k"}});
        create(&api, sync("jobs", "pubsub", json!({"topic": "j"}), into)).await;
        let worker = api.worker("sync").await;
        let work = async {
            let job = api.next_job(&worker).await;
            assert_eq!(job["max_attempts"], 1, "{job}");
            api.settle(&worker, json!({"job_id": job["id"], "epoch": job["epoch"], "outcome": "finish", "result": 42})).await
        };
        let publish = async { api.post("/api/v1/topics/j", json!(1)).await.json() };
        let (_, response) = tokio::join!(work, publish);
        assert_eq!((&response["runs"][0]["state"], &response["runs"][0]["result"]), (&json!("succeeded"), &json!(42)), "{response}");
        assert!(response["runs"][0]["job_id"].is_string());
        assert_eq!(api.db.store.verify().await.unwrap().findings, []);
    })
    .await;
}

/// Requirement T2.
#[tokio::test]
async fn the_hook_of_a_sync_trigger_returns_the_status_of_its_job() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let hook = create(&api, json!({"name": "hook", "source": "http", "mode": "sync", "target": {"job": {"queue": "sync", "kind": "k"}}})).await;
        let worker = api.worker("sync").await;
        let failed = json!({"outcome": "fail", "error": {"code": "bad_address", "message": "no such street", "retryable": false}});
        let full = json!({"outcome": "fail", "error": {"code": "out_of_memory", "retryable": false}});
        let outcomes = [(json!({"outcome": "finish", "result": 42}), 200), (failed, 422), (full, 507)];
        for (outcome, status) in outcomes {
            let work = async {
                let job = api.next_job(&worker).await;
                let mut settled = outcome.clone();
                settled["job_id"] = job["id"].clone();
                settled["epoch"] = job["epoch"].clone();
                api.settle(&worker, settled).await;
                job
            };
            let path = format!("/api/v1/hooks/{hook}");
            let (job, response) = tokio::join!(work, api.post(&path, json!({"n": 1})));
            assert_eq!(response.status, status, "{:?}", response.json());
            if status == 200 {
                assert_eq!(response.json()["runs"][0]["result"], 42);
            } else {
                assert_eq!(response.json()["job_id"], job["id"]);
            }
        }
        assert_eq!(api.get("/api/v1/dead-letters/count").await.json()["count"], 0, "the caller got the errors");
        api.db.pass_ms(60_000).await;
        api.db.store.sweep_calls(1_000_000).await.unwrap();
        assert_eq!(api.get("/api/v1/abandoned").await.json()["items"], json!([]), "the caller received every result");
        assert_eq!(api.db.store.verify().await.unwrap().findings, []);
    })
    .await;
}

/// Requirement T7.
#[tokio::test]
async fn the_result_of_a_sync_hook_is_kept_after_its_caller_has_gone() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let hook = create(&api, json!({"name": "hook", "source": "http", "mode": "sync", "target": {"job": {"queue": "sync", "kind": "k"}}})).await;
        let worker = api.worker("sync").await;
        let path = format!("/api/v1/hooks/{hook}");
        let job = tokio::select! {
            job = api.next_job(&worker) => job,
            _ = api.post(&path, json!({"n": 1})) => panic!("no worker has run the job"),
        };
        let outcome = json!({"job_id": job["id"], "epoch": job["epoch"], "outcome": "finish", "result": 42});
        api.settle(&worker, outcome).await;
        api.db.pass_ms(60_000).await;
        api.db.store.sweep_calls(1_000_000).await.unwrap();
        let kept = api.get("/api/v1/abandoned").await.json();
        assert_eq!((&kept["items"][0]["job_id"], &kept["items"][0]["result"]), (&job["id"], &json!(42)), "{kept}");
    })
    .await;
}
