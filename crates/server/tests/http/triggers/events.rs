//! External events: CloudEvents, messages and signed hooks, each accepted once.

use axum::body::Body;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use testkit::on_both;

use crate::api::{Api, request};
use crate::triggers::runs::{TRIGGERS, create, jobs, on};

/// Requirement T1.
#[tokio::test]
async fn cloud_events_are_accepted_in_binary_structured_and_batch_mode() {
    on_both(async |db| {
        let api = Api::new(db).await;
        create(&api, on("pubsub", json!({"topic": "com.example.*"}), json!({"queue": "ce", "kind": "k"}))).await;
        let binary = |id: &str, content_type: Option<&str>, body: &str| {
            let builder = request("POST", "/api/v1/events").header("ce-specversion", "1.0").header("ce-id", id);
            let builder = builder.header("ce-source", "/here").header("ce-type", "com.example.made");
            let builder = content_type.into_iter().fold(builder, |builder, text| builder.header("content-type", text));
            builder.body(Body::from(body.to_owned())).unwrap()
        };
        assert_eq!(api.send(binary("1", Some("application/json"), "{\"a\":1}")).await.status, 202);
        assert_eq!(api.send(binary("2", None, "{\"a\":2}")).await.status, 202, "no Content-Type");
        assert_eq!(api.send(binary("3", Some("text/plain"), "words")).await.status, 202);
        let event = |id: &str| {
            json!({"specversion": "1.0", "id": id, "source": "/here", "type": "com.example.made", "data": {"a": 3}})
        };
        let structured = |content_type: &str, body: &Value| {
            let builder = request("POST", "/api/v1/events").header("content-type", content_type);
            builder.body(Body::from(body.to_string())).unwrap()
        };
        assert_eq!(api.send(structured("application/cloudevents+json; charset=utf-8", &event("4"))).await.status, 202);
        let batch = api.send(structured("application/cloudevents-batch+json", &json!([event("5"), event("6")]))).await;
        assert_eq!((batch.status.as_u16(), batch.json()["event_ids"].as_array().unwrap().len()), (202, 2));
        let made = jobs(&api, "ce", 6).await;
        let data: Vec<&Value> = made.iter().map(|job| &job["payload"]["data"]).collect();
        for expected in [json!({"a": 1}), json!({"a": 2}), json!("words"), json!({"a": 3})] {
            assert!(data.contains(&&expected), "{expected} in {data:?}");
        }
        assert_eq!(made[0]["payload"]["event"]["ce_source"], "/here");
        let bad = json!({"specversion": "1.0", "id": "2", "type": "x"});
        api.send(structured("application/cloudevents+json", &bad)).await.problem(422, "invalid_field", Some("source"));
        let bad = json!([event("7"), {"specversion": "0.3"}]);
        let response = api.send(structured("application/cloudevents-batch+json", &bad)).await;
        response.problem(422, "invalid_field", Some("[1].specversion"));
        let list = json!(["1.0", "3", "/here", "com.example.made", null, null, {"a": 4}, null]);
        for (content_type, body) in
            [("application/cloudevents+json", &list), ("application/cloudevents-batch+json", &json!([list]))]
        {
            api.send(structured(content_type, body)).await.problem(422, "invalid_field", None);
        }
        api.send(structured("application/json", &event("7"))).await.problem(415, "unsupported_media_type", None);
        jobs(&api, "ce", 6).await;
    })
    .await;
}

/// Requirement T4.
#[tokio::test]
async fn a_cloud_event_is_deduplicated_by_source_and_id() {
    on_both(async |db| {
        let api = Api::new(db).await;
        create(&api, on("pubsub", json!({"topic": "t"}), json!({"queue": "ce", "kind": "k"}))).await;
        let hook = create(&api, on("http", json!({}), json!({"queue": "hooked", "kind": "k"}))).await;
        let event = |id: &str| json!({"specversion": "1.0", "id": id, "source": "/here", "type": "t", "data": 1});
        let send = async |path: &str, body: Value| {
            let mode = if body.is_array() { "cloudevents-batch+json" } else { "cloudevents+json" };
            let builder = request("POST", path).header("content-type", format!("application/{mode}"));
            api.send(builder.body(Body::from(body.to_string())).unwrap()).await
        };
        let (one, two) = tokio::join!(send("/api/v1/events", event("1")), send("/api/v1/events", event("1")));
        let mut statuses = [one.status.as_u16(), two.status.as_u16()];
        statuses.sort_unstable();
        assert_eq!((statuses, one.json()), ([200, 202], two.json()));
        let batch = send("/api/v1/events", json!([event("2"), event("1"), event("2")])).await;
        let ids = batch.json()["event_ids"].clone();
        assert_eq!((batch.status.as_u16(), &ids[0], &ids[1]), (202, &ids[2], &one.json()["event_id"]));
        jobs(&api, "ce", 2).await;
        // Hooks deduplicate independently of topics.
        let hook = format!("/api/v1/hooks/{hook}");
        let first = send(&hook, event("1")).await;
        let again = send(&hook, event("1")).await;
        assert_eq!((first.status.as_u16(), again.status.as_u16(), again.json()), (202, 200, first.json()));
        jobs(&api, "hooked", 1).await;
        api.db.pass_ms(domain::limits::IDEMPOTENCY_RETENTION_S * 1_000).await;
        assert_eq!(send("/api/v1/events", event("1")).await.status, 202, "an id is retained for a day");
        jobs(&api, "ce", 3).await;
        jobs(&api, "hooked", 1).await;
    })
    .await;
}

/// Requirement T4.
#[tokio::test]
async fn a_message_with_an_idempotency_key_is_published_once() {
    on_both(async |db| {
        let api = Api::new(db).await;
        create(&api, on("pubsub", json!({"topic": "*"}), json!({"queue": "q", "kind": "k"}))).await;
        let publish = async |topic: &str, data: &'static str| {
            let builder =
                request("POST", &format!("/api/v1/topics/{topic}")).header("content-type", "application/json");
            api.send(builder.header("idempotency-key", "once").body(Body::from(data)).unwrap()).await
        };
        let first = publish("t", "1").await;
        let again = publish("t", "1").await;
        assert_eq!((first.status.as_u16(), again.status.as_u16(), again.json()), (202, 200, first.json()));
        publish("t", "2").await.problem(422, "idempotency_key_reused", Some("Idempotency-Key"));
        assert_eq!(publish("other", "1").await.status, 202, "another topic");
        jobs(&api, "q", 2).await;
    })
    .await;
}

fn signed(path: &str, key: &[u8], id: &str, timestamp: i64, body: &str) -> axum::http::Request<Body> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(format!("{id}.{timestamp}.{body}").as_bytes());
    let signature = format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()));
    let builder = request("POST", path).header("content-type", "application/json").header("webhook-id", id);
    let builder = builder.header("webhook-timestamp", timestamp).header("webhook-signature", signature);
    builder.body(Body::from(body.to_owned())).unwrap()
}

/// Requirement T1.
#[tokio::test]
async fn a_hook_accepts_json_and_each_signed_message_once() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let open = create(&api, on("http", json!({}), json!({"queue": "open", "kind": "k"}))).await;
        assert_eq!(api.post(&format!("/api/v1/hooks/{open}"), json!({"a": 1})).await.status, 202);
        assert_eq!(jobs(&api, "open", 1).await[0]["payload"]["data"], json!({"a": 1}));
        let key = [7; 24];
        let secret = format!("whsec_{}", STANDARD.encode(key));
        let closed = on("http", json!({"secret": secret}), json!({"queue": "closed", "kind": "k"}));
        let id = create(&api, closed.clone()).await;
        let shown = api.get(&format!("{TRIGGERS}/{id}")).await.json();
        assert_eq!(shown["filter"]["secret"], "(kept)");
        assert!(!shown.to_string().contains(&secret));
        let path = shown["hook"].as_str().unwrap();
        let now = api.db.clock.now().millis() / 1_000;
        api.post(path, json!({"a": 1})).await.problem(401, "bad_signature", None);
        api.send(signed(path, &[8; 24], "m1", now, "{}")).await.problem(401, "bad_signature", None);
        api.send(signed(path, &key, "m1", now - 600, "{}")).await.problem(401, "bad_signature", None);
        let first = api.send(signed(path, &key, "m1", now, "{\"a\":2}")).await;
        assert_eq!(first.status, 202);
        let again = api.send(signed(path, &key, "m1", now, "{\"a\":2}")).await;
        assert_eq!((again.status.as_u16(), again.json()), (200, first.json()), "a repeated message gets its response");
        api.send(signed(path, &key, "m1", now, "{\"a\":3}")).await.problem(409, "replay_refused", Some("webhook-id"));
        // Writing back the masked secret keeps it.
        let masked = json!({"name": "renamed", "source": "http", "filter": shown["filter"], "target": shown["target"]});
        assert_eq!(api.put(&format!("{TRIGGERS}/{id}"), masked).await.status, 200);
        assert_eq!(api.send(signed(path, &key, "m2", now, "{}")).await.status, 202);
        api.post(path, json!({})).await.problem(401, "bad_signature", None);
        jobs(&api, "closed", 2).await;
        api.post("/api/v1/hooks/01890a5d-ac96-774b-bcce-b302099a8057", json!({})).await.problem(404, "not_found", None);
    })
    .await;
}
