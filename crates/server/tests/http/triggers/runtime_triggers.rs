//! Triggers that operate runtimes, with the rights of their principal and the depth of their event.

use engine::EngineOptions;
use engine::runtimes::RuntimeOptions;
use serde_json::{Value, json};
use testkit::on_both;

use crate::access::tokens::Caller;
use crate::api::Api;
use crate::runtimes::operations::{Driven, PATH, spec};

const TRIGGERS: &str = "/api/v1/triggers";

fn on_topic(name: &str, operation: &str) -> Value {
    json!({"name": name, "source": "pubsub", "filter": {"topic": "t"}, "retry": {"max_attempts": 1},
           "target": {"runtime": {"name": "{{ data.name }}", "operation": operation}}})
}

fn items(page: &Value) -> &Vec<Value> {
    page["items"].as_array().unwrap()
}

/// Requirement T2.
#[tokio::test]
async fn an_event_operates_a_runtime_while_the_principal_has_the_right() {
    on_both(async |db| {
        let root = tempfile::tempdir().unwrap();
        // The Docker engine is unavailable, so the operation is stored and waits.
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
        assert_eq!((&dry["dry_run"]["matches"], &dry["dry_run"]["effects"]), (&json!(true), &json!(["start model"])));
        assert_eq!(admin.put("/api/v1/runtimes/model", json!({"image": "example/model:1.2.3"})).await.status, 200);
        let event = admin.post("/api/v1/topics/t", json!({"name": "model"})).await.json()["event_id"].clone();
        let log = "/api/v1/runtimes/model/operations";
        let lines = admin.get_when(log, |page| !items(page).is_empty()).await;
        let line = items(&lines).last().unwrap();
        assert_eq!((&line["kind"], &line["source"], &line["source_ref"]), (&json!("start"), &json!("stream"), &event));
        let letters = "/api/v1/dead-letters";
        admin.post("/api/v1/topics/t", json!({"name": "missing"})).await;
        let page = admin.get_when(letters, |page| items(page).len() == 1).await;
        assert_eq!(items(&page)[0]["last_error"]["code"], "not_found", "{page}");
        admin.delete(&format!("/api/v1/tokens/{}", made["id"].as_str().unwrap())).await;
        admin.post("/api/v1/topics/t", json!({"name": "model"})).await;
        let page = admin.get_when(letters, |page| items(page).len() == 2).await;
        assert_eq!(items(&page)[0]["last_error"]["code"], "forbidden", "{page}");
        let log = admin.get(log).await.json();
        let others = items(&log).iter().filter(|line| line["source_ref"] != event).count();
        assert_eq!(others, 0, "only the first event requested an operation");
    })
    .await;
}

/// Requirement T5.
#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_that_restarts_a_healthy_runtime_ends_at_the_depth_limit() {
    on_both(async |db| {
        let options = EngineOptions { max_trigger_depth: 2, ..EngineOptions::default() };
        let driven = Driven::with(db, options).await;
        let restarts = json!({"name": "restarts", "source": "runtime", "filter": {"name": "mo*", "health": "healthy"},
                              "target": {"runtime": {"name": "{{ event.name }}", "operation": "restart"}}});
        let restarts = driven.api.post(TRIGGERS, restarts).await.json()["id"].as_str().unwrap().to_owned();
        // Without a probe, because a probe that fails during the start would make the later recovery a change that no
        // trigger caused.
        let mut unprobed = spec();
        unprobed["probe"] = Value::Null;
        assert_eq!(driven.api.put(PATH, unprobed).await.status, 200);
        driven.operate("start", json!({})).await;
        let path = format!("{TRIGGERS}/{restarts}");
        let stopped = driven.api.get_when(&path, |trigger| trigger["loops_stopped"] == 1).await;
        assert_eq!(stopped["fired"], 2, "{stopped}");
        let by_events = driven.operations().await;
        let by_events = by_events.iter().filter(|line| line["kind"] == "restart" && line["source"] == "stream").count();
        assert_eq!(by_events, 2);
    })
    .await;
}
