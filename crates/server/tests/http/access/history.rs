//! The history of a tenant: actions on tokens, queues, triggers and subjects, newest first.

use axum::body::Body;
use serde_json::{Value, json};
use testkit::on_both;

use crate::api::{Api, request};

fn events(page: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    page["items"].as_array().unwrap().iter().map(|item| (text(&item["event"]), text(&item["actor"]))).collect()
}

/// Requirement X5.
#[tokio::test]
async fn actions_of_a_user_appear_in_the_history_of_the_tenant() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let root = api.caller(json!({"name": "root", "role": "admin"})).await;
        server::access::local_admin::create_tenant(&api.db.store, "other").await.unwrap();
        let other = api.caller(json!({"name": "stranger", "role": "admin", "tenant": "other"})).await;
        let made = root.post("/api/v1/tokens", json!({"name": "ci", "role": "viewer"})).await.json();
        root.post("/api/v1/queues/mail/pause", json!({"reason": "deploy"})).await;
        let trigger = json!({"name": "t", "source": "pubsub", "filter": {"topic": "t"},
                             "target": {"job": {"queue": "mail", "kind": "k"}}});
        let trigger = root.post("/api/v1/triggers", trigger).await;
        assert_eq!(trigger.status, 201);
        assert_eq!(root.put("/api/v1/subjects/node-7", json!({"facts": {"up": true}})).await.status, 200);
        let form = request("POST", "/sign-in").header("content-type", "application/x-www-form-urlencoded");
        let form = form.body(Body::from(format!("token={}", made["token"].as_str().unwrap()))).unwrap();
        assert_eq!(api.send(form).await.status, 303);
        root.post("/api/v1/queues/mail/resume", json!({})).await;
        root.put("/api/v1/queues/mail", json!({"concurrency": 3})).await;
        let trigger = trigger.json()["id"].as_str().unwrap().to_owned();
        assert_eq!(root.delete(&format!("/api/v1/triggers/{trigger}")).await.status, 204);
        let quota = store::access::tenants::quota::Quota { weight: Some(3), ..Default::default() };
        assert!(api.db.store.set_quota(domain::Name::stored("default"), quota, "machine").await.unwrap());
        root.delete(&format!("/api/v1/tokens/{}", made["id"].as_str().unwrap())).await;

        let page = root.get("/api/v1/history").await.json();
        let expected = [
            ("token_revoked", "root"),
            ("signed_in", "ci"),
            ("quotas_changed", "machine"),
            ("trigger_deleted", "root"),
            ("queue_changed", "root"),
            ("queue_resumed", "root"),
            ("trigger_created", "root"),
            ("queue_paused", "root"),
            ("token_created", "root"),
            ("token_created", "machine"),
        ];
        let all = events(&page);
        for (event, actor) in expected {
            assert!(all.contains(&(event.to_owned(), actor.to_owned())), "{event} by {actor} in {all:?}");
        }
        assert_eq!(all[0].0, "token_revoked", "newest first");
        assert!(!page.to_string().contains(made["token"].as_str().unwrap()), "the history contains no secret");
        let paused = page["items"].as_array().unwrap().iter().find(|item| item["event"] == "queue_paused").unwrap();
        assert_eq!((&paused["cause"], &paused["detail"]["queue"]), (&json!("deploy"), &json!("mail")));
        let of_subject = root.get("/api/v1/history?subject=node-7").await.json();
        assert!(of_subject["items"].as_array().unwrap().iter().all(|item| item["subject"] == "node-7"));

        let first = root.get("/api/v1/history?limit=2").await.json();
        let rest = root.get(&format!("/api/v1/history?cursor={}", first["next_cursor"].as_str().unwrap())).await.json();
        assert_eq!([events(&first), events(&rest)].concat(), all, "pages without gaps or repeats");
        assert_eq!(events(&other.get("/api/v1/history").await.json()).len(), 1, "only the creation of its own token");
        root.get("/api/v1/history?subject=a&runtime=b").await.problem(422, "invalid_field", Some("runtime"));
        root.get("/api/v1/history?subject=%00").await.problem(400, "invalid_query", Some("subject"));
        root.get("/api/v1/history?runtime=%00").await.problem(400, "invalid_query", Some("runtime"));
        root.get("/api/v1/history?cursor=nonsense").await.problem(400, "invalid_cursor", Some("cursor"));
    })
    .await;
}
