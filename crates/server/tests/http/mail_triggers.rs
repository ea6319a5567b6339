//! T1: whose a mail address is, over HTTP.

use serde_json::{Value, json};
use testkit::on_both;

use crate::api::Api;

const TRIGGERS: &str = "/api/v1/triggers";

fn on(source: &str, filter: Value) -> Value {
    json!({"name": source, "source": source, "filter": filter, "target": {"job": {"queue": "q", "kind": "k"}}})
}

/// Makes a trigger and gives its path.
async fn create(api: &Api, trigger: Value) -> String {
    let answer = api.post(TRIGGERS, trigger).await;
    assert_eq!(answer.status, 201, "{:?}", answer.body);
    format!("{TRIGGERS}/{}", answer.json()["id"].as_str().unwrap())
}

#[tokio::test]
async fn t1_a_trigger_that_is_replaced_takes_up_no_other_address() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let old = create(&api, on("kv", json!({"collection": "c"}))).await;
        let mine = create(&api, on("email", json!({"to": "mine@example.com"}))).await;
        let to = |address: &str| on("email", json!({"to": address}));
        let mut taking = to("theirs@example.com");
        api.put(&mine, taking.clone()).await.problem(422, "invalid_field", Some("filter.to"));
        api.put(&mine, to("*")).await.problem(422, "invalid_field", Some("filter.to"));
        taking["name"] = json!("kv");
        api.put(&old, taking).await.problem(422, "invalid_field", Some("filter.to"));
        assert!(!api.db.store.awaits_mail("theirs@example.com").await.unwrap());
        let mut off = to("Mine@Example.com");
        off["enabled"] = json!(false);
        assert_eq!(api.put(&mine, off).await.status, 200, "the address is the same");
        assert_eq!(api.put(&mine, on("pubsub", json!({"topic": "t"}))).await.status, 200);
        api.put(&mine, to("mine@example.com")).await.problem(422, "invalid_field", Some("filter.to"));
    })
    .await;
}
