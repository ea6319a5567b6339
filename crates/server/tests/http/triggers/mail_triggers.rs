//! Ownership of mail addresses by triggers, over HTTP.

use serde_json::{Value, json};
use testkit::on_both;

use crate::api::Api;

const TRIGGERS: &str = "/api/v1/triggers";

fn on(source: &str, filter: Value) -> Value {
    json!({"name": source, "source": source, "filter": filter, "target": {"job": {"queue": "q", "kind": "k"}}})
}

/// Creates a trigger and returns its path.
async fn create(api: &Api, trigger: Value) -> String {
    let response = api.post(TRIGGERS, trigger).await;
    assert_eq!(response.status, 201, "{:?}", response.body);
    format!("{TRIGGERS}/{}", response.json()["id"].as_str().unwrap())
}

/// Requirement T1.
#[tokio::test]
async fn replacing_a_trigger_cannot_claim_another_mail_address() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let old = create(&api, on("kv", json!({"collection": "c"}))).await;
        let mine = create(&api, on("email", json!({"to": "mine@example.com"}))).await;
        let to = |address: &str| on("email", json!({"to": address}));
        let mut taken = to("theirs@example.com");
        api.put(&mine, taken.clone()).await.problem(422, "invalid_field", Some("filter.to"));
        api.put(&mine, to("*")).await.problem(422, "invalid_field", Some("filter.to"));
        taken["name"] = json!("kv");
        api.put(&old, taken).await.problem(422, "invalid_field", Some("filter.to"));
        assert!(!api.db.store.accepts_mail("theirs@example.com").await.unwrap());
        let mut off = to("Mine@Example.com");
        off["enabled"] = json!(false);
        assert_eq!(api.put(&mine, off).await.status, 200, "addresses are case-insensitive");
        assert_eq!(api.put(&mine, on("pubsub", json!({"topic": "t"}))).await.status, 200);
        api.put(&mine, to("mine@example.com")).await.problem(422, "invalid_field", Some("filter.to"));
    })
    .await;
}
