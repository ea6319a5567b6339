//! T2, T5: a trigger operates a runtime, with its principal's rights, and what that brings about inherits its depth.

use std::time::{Duration, Instant};

use engine::EngineOptions;
use engine::runtime::RuntimeOptions;
use serde_json::{Value, json};
use testkit::on_both;

use crate::api::Api;
use crate::runtimes::{Driven, PATH, spec};
use crate::tokens::Caller;

const TRIGGERS: &str = "/api/v1/triggers";

fn on_topic(name: &str, operation: &str) -> Value {
    json!({"name": name, "source": "pubsub", "filter": {"topic": "t"}, "retry": {"max_attempts": 1},
           "target": {"runtime": {"name": "{{ data.name }}", "operation": operation}}})
}

async fn until(what: &str, look: impl AsyncFn() -> Value, is_so: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + crate::api::PATIENCE;
    loop {
        let seen = look().await;
        if is_so(&seen) {
            return seen;
        }
        assert!(Instant::now() < deadline, "{what}: {seen}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn items(page: &Value) -> &Vec<Value> {
    page["items"].as_array().unwrap()
}

#[tokio::test]
async fn t2_an_event_operates_a_runtime_as_long_as_whoever_registered_that_may() {
    on_both(async |db| {
        let root = tempfile::tempdir().unwrap();
        // An engine that is away: what is asked for is written down, and waits.
        let options = RuntimeOptions::new("here", "unix:///nowhere/docker.sock", root.path().join("state"));
        let api = Api::with_engine(db, EngineOptions { runtimes: Some(options), ..EngineOptions::default() }).await;
        let admin = api.caller(json!({"name": "root", "role": "admin"})).await;
        let rights = json!({"name": "half", "role": "operator", "rights": ["manage_triggers"]});
        let half = api.caller(rights).await;
        let refused = half.post(TRIGGERS, on_topic("no", "start")).await;
        refused.problem(403, "forbidden", None);
        let made = admin.post("/api/v1/tokens", json!({"name": "ops", "role": "admin"})).await.json();
        let ops = Caller { api: &api, token: made["token"].as_str().unwrap().to_owned() };
        let trigger = ops.post(TRIGGERS, on_topic("starts", "start")).await;
        assert_eq!(trigger.status, 201, "{:?}", trigger.body);
        let fire = format!("{TRIGGERS}/{}/fire", trigger.json()["id"].as_str().unwrap());
        let dry = admin.post(&fire, json!({"dry_run": true, "data": {"name": "model"}})).await.json();
        assert_eq!((&dry["dry_run"]["matches"], &dry["dry_run"]["deeds"]), (&json!(true), &json!(["start model"])));
        assert_eq!(admin.put("/api/v1/runtimes/model", json!({"image": "example/model:1.2.3"})).await.status, 200);
        let event = admin.post("/api/v1/topics/t", json!({"name": "model"})).await.json()["event_id"].clone();
        let log = async || admin.get("/api/v1/runtimes/model/operations").await.json();
        let lines = until("it is asked for", log, |page| !items(page).is_empty()).await;
        let line = items(&lines).last().unwrap();
        assert_eq!((&line["kind"], &line["source"], &line["source_ref"]), (&json!("start"), &json!("stream"), &event));
        let letters = async || admin.get("/api/v1/dead-letters").await.json();
        admin.post("/api/v1/topics/t", json!({"name": "nobody"})).await;
        let page = until("there is no such runtime", letters, |page| items(page).len() == 1).await;
        assert_eq!(items(&page)[0]["last_error"]["code"], "not_found", "{page}");
        admin.delete(&format!("/api/v1/tokens/{}", made["id"].as_str().unwrap())).await;
        admin.post("/api/v1/topics/t", json!({"name": "model"})).await;
        let page = until("the right is gone", letters, |page| items(page).len() == 2).await;
        assert_eq!(items(&page)[0]["last_error"]["code"], "forbidden", "{page}");
        let asked = items(&log().await).iter().filter(|line| line["source_ref"] != event).count();
        assert_eq!(asked, 0, "nothing but the first was asked for");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t5_a_trigger_that_restarts_what_has_just_become_healthy_ends_at_the_depth_limit() {
    on_both(async |db| {
        let options = EngineOptions { max_trigger_depth: 2, ..EngineOptions::default() };
        let driven = Driven::with(db, options).await;
        let restarts = json!({"name": "restarts", "source": "runtime", "filter": {"name": "mo*", "health": "healthy"},
                              "target": {"runtime": {"name": "{{ event.name }}", "operation": "restart"}}});
        let restarts = driven.api.post(TRIGGERS, restarts).await.json()["id"].as_str().unwrap().to_owned();
        // Without a probe, which could fail before it is up: then that is what the start led to, and healthy it becomes
        // by itself.
        let mut unprobed = spec();
        unprobed["probe"] = Value::Null;
        assert_eq!(driven.api.put(PATH, unprobed).await.status, 200);
        driven.operate("start", json!({})).await;
        let trigger = async || driven.api.get(&format!("{TRIGGERS}/{restarts}")).await.json();
        let stopped = until("the loop is stopped", trigger, |trigger| trigger["loops_stopped"] == 1).await;
        assert_eq!(stopped["fired"], 2, "{stopped}");
        let by_events = driven.operations().await;
        let by_events = by_events.iter().filter(|line| line["kind"] == "restart" && line["source"] == "stream").count();
        assert_eq!(by_events, 2);
    })
    .await;
}
