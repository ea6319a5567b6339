//! Deliveries over HTTP.

use domain::address::{Allowed, Private};
use engine::EngineOptions;
use serde_json::{Value, json};
use testkit::eventually::wait_until;
use testkit::on_both;
use testkit::receiver::{Behavior, Receiver};

use crate::access::tokens::Caller;
use crate::api::{Api, members};

/// A server that may send requests to this machine.
pub(crate) async fn open(db: testkit::Database) -> Api {
    let allowed = Allowed { private: Private::Allowed, networks: Vec::new() };
    Api::with_engine(db, EngineOptions { allowed, ..EngineOptions::default() }).await
}

async fn finish_a_job(api: &Api, webhook: Value) -> String {
    let job = json!({"queue": "q", "kind": "k", "webhook": webhook, "max_attempts": 1});
    let job = api.post("/api/v1/jobs", job).await.json()["id"].as_str().unwrap().to_owned();
    let worker = api.worker("q").await;
    let claimed = api.post(&format!("/api/v1/workers/{worker}/claim"), json!({"max": 1})).await.json();
    let epoch = claimed["jobs"][0]["epoch"].clone();
    api.settle(&worker, json!({"job_id": job, "epoch": epoch, "outcome": "finish", "result": {"ok": true}})).await;
    job
}

/// Requirement Q10.
#[tokio::test]
async fn deliveries_are_listed_shown_with_every_attempt_and_redelivered() {
    on_both(async |db| {
        let api = open(db).await;
        let receiver = Receiver::start(Behavior::Respond(500)).await;
        let webhook = json!({"url": receiver.url(), "secret": "whsec_c2VjcmV0"});
        let job = finish_a_job(&api, webhook).await;
        let path = format!("/api/v1/deliveries?job={job}");
        // Both are retried after some seconds, so the page must show both attempts at the same time.
        let mut page = Value::Null;
        wait_until("both deliveries were attempted", async || {
            page = api.get(&path).await.json();
            let tried = |item: &&Value| item["status"] == 500 && item["state"] == "pending";
            page["items"].as_array().unwrap().iter().filter(tried).count() == 2
        })
        .await;
        let newest = &page["items"][0];
        assert_eq!((&newest["op"], &newest["source"]), (&json!("succeeded"), &json!("job")));
        assert_eq!(newest["job_id"], json!(job));
        assert!(newest["next_attempt_at"].is_string() && newest["error"] == "the receiver answered 500");
        let expected = [
            "attempt",
            "circuit_open_until",
            "created_at",
            "ended_at",
            "error",
            "event_id",
            "id",
            "job_id",
            "max_attempts",
            "message_id",
            "method",
            "next_attempt_at",
            "op",
            "source",
            "state",
            "status",
            "trigger_id",
            "url",
        ];
        assert_eq!(members(newest), expected);

        let id = newest["id"].as_str().unwrap();
        let shown = api.get(&format!("/api/v1/deliveries/{id}")).await.json();
        // Another attempt may have timed out.
        let has_response = |attempt: &Value| attempt["status"] == 500 && attempt["response"] == "thanks";
        assert!(shown["attempts"].as_array().unwrap().iter().any(has_response), "{shown}");
        assert_eq!(
            (&shown["body"]["type"], &shown["body"]["data"]["result"]),
            (&json!("job.succeeded"), &json!({"ok": true}))
        );
        assert!(!shown.to_string().contains("whsec_"), "a secret is never shown");

        receiver.set_behavior(Behavior::Respond(200));
        // A redelivery does not change a delivery that is being sent.
        wait_until("the delivery is pending again", async || {
            let again = api.call("POST", &format!("/api/v1/deliveries/{id}/redeliver")).await;
            assert_eq!(again.status, 202);
            again.json()["state"] == "pending"
        })
        .await;
        wait_until("the delivery is delivered", async || {
            api.get(&format!("/api/v1/deliveries/{id}")).await.json()["state"] == "delivered"
        })
        .await;
        // The other delivery is retried after its backoff.
        let delivered = api.get("/api/v1/deliveries?state=delivered").await.json();
        let items = delivered["items"].as_array().unwrap();
        assert!(items.iter().any(|item| item["id"] == id), "{delivered}");
        assert!(items.iter().all(|item| item["state"] == "delivered"), "{delivered}");
    })
    .await;
}

/// Requirement Q10.
#[tokio::test]
async fn delivery_pages_have_no_gaps_and_invalid_queries_are_rejected() {
    on_both(async |db| {
        let api = open(db).await;
        let receiver = Receiver::start(Behavior::Respond(200)).await;
        for _ in 0..3 {
            finish_a_job(&api, json!({"url": receiver.url()})).await;
        }
        let (mut seen, mut path) = (Vec::new(), "/api/v1/deliveries?limit=4".to_owned());
        loop {
            let page = api.get(&path).await.json();
            seen.extend(page["items"].as_array().unwrap().iter().map(|item| item["id"].clone()));
            let Some(cursor) = page["next_cursor"].as_str() else { break };
            path = format!("/api/v1/deliveries?limit=4&cursor={cursor}");
        }
        let distinct: std::collections::BTreeSet<String> = seen.iter().map(Value::to_string).collect();
        assert_eq!((seen.len(), distinct.len()), (6, 6));
        api.get("/api/v1/deliveries?state=lost").await.problem(400, "invalid_query", Some("state"));
        api.get("/api/v1/deliveries?job=7").await.problem(400, "invalid_query", Some("job"));
        api.get("/api/v1/deliveries?cursor=AWoA").await.problem(400, "invalid_cursor", Some("cursor"));
        api.get("/api/v1/deliveries/7").await.problem(404, "not_found", None);
        api.call("POST", "/api/v1/deliveries/01890a5d-ac96-774b-bcce-b302099a8057/redeliver").await.problem(
            404,
            "not_found",
            None,
        );
    })
    .await;
}

/// Requirement Q10.
#[tokio::test]
async fn a_queue_webhook_keeps_its_secrets_when_settings_are_written_back() {
    on_both(async |db| {
        let api = open(db).await;
        let receiver = Receiver::start(Behavior::Respond(200)).await;
        let webhook = json!({"url": receiver.url(), "secrets": ["whsec_bmV3", "whsec_b2xk"]});
        let set = api.put("/api/v1/queues/q", json!({"webhook": webhook})).await.json();
        assert_eq!(set["settings"]["webhook"], json!({"url": receiver.url()}), "secrets are not shown");
        assert_eq!(api.put("/api/v1/queues/q", set["settings"].clone()).await.status, 200);
        let job = finish_a_job(&api, Value::Null).await;
        let seen = receiver.wait_for(2).await;
        assert_eq!(seen[1].header("webhook-signature").map(|text| text.split(' ').count()), Some(2));
        let job = api.get(&format!("/api/v1/jobs/{job}")).await.json();
        assert_eq!(job["webhook_url"], Value::Null, "the webhook belongs to the queue");
    })
    .await;
}

/// Requirement X7.
#[tokio::test]
async fn trigger_header_values_are_hidden_and_preserved_when_written_back() {
    on_both(async |db| {
        let api = open(db).await;
        let receiver = Receiver::start(Behavior::Respond(200)).await;
        let headers = json!({"authorization": "Bearer canary-7", "x-n": "{{ data.n }}"});
        let trigger = json!({"name": "calls", "source": "pubsub", "filter": {"topic": "t"},
                             "target": {"http": {"url": receiver.url(), "headers": headers}}});
        let made = api.post("/api/v1/triggers", trigger.clone()).await;
        assert_eq!(made.status, 201, "{:?}", made.body);
        let path = format!("/api/v1/triggers/{}", made.json()["id"].as_str().unwrap());
        let mut shown = api.get(&path).await.json();
        let masked = json!({"authorization": "(kept)", "x-n": "{{ data.n }}"});
        assert_eq!(shown["target"]["http"]["headers"], masked, "a template is not a secret");
        let mut back = trigger.clone();
        back["target"] = shown["target"].take();
        assert_eq!(api.put(&path, back.clone()).await.status, 200);
        api.post("/api/v1/topics/t", json!({"n": 3})).await;
        let seen = &receiver.wait_for(1).await[0];
        assert_eq!((seen.header("authorization"), seen.header("x-n")), (Some("Bearer canary-7"), Some("3")));
        for path in ["/api/v1/triggers", "/api/v1/deliveries", "/api/v1/history"] {
            let response = api.get(path).await;
            assert!(!String::from_utf8_lossy(&response.body).contains("canary"), "{:?}", response.body);
        }
        // A stored secret is bound to its destination.
        back["target"]["http"]["url"] = json!("https://elsewhere.example/hook");
        let field = Some("target.http.headers.authorization");
        api.put(&path, back.clone()).await.problem(422, "invalid_field", field);
        back["target"]["http"]["headers"]["authorization"] = json!("sealed.1.AAAA");
        api.put(&path, back).await.problem(422, "invalid_field", field);
    })
    .await;
}

/// Requirement X10.
#[tokio::test]
async fn a_url_with_credentials_or_control_characters_is_rejected_everywhere() {
    on_both(async |db| {
        let api = Api::new(db).await;
        assert_rejected(&api, "https://ann:hunter2@example.com/hook").await;
        for control in ['\0', '\n', '\t', '\u{7f}'] {
            assert_rejected(&api, &format!("https://example.com/{control}hook")).await;
            assert_rejected(&api, &format!("https://example.com/hook{control}")).await;
        }
    })
    .await;
}

async fn assert_rejected(api: &Api, url: &str) {
    let job = json!({"queue": "q", "kind": "k", "webhook": {"url": url}});
    api.post("/api/v1/jobs", job.clone()).await.problem(422, "invalid_field", Some("webhook.url"));
    api.put("/api/v1/queues/q", json!({"webhook": {"url": url}})).await.problem(
        422,
        "invalid_field",
        Some("webhook.url"),
    );
    for (target, field) in
        [(json!({"http": {"url": url}}), "target.http.url"), (json!({"job": job}), "target.job.webhook.url")]
    {
        let trigger = json!({"name": "t", "source": "kv", "filter": {}, "target": target});
        api.post("/api/v1/triggers", trigger).await.problem(422, "invalid_field", Some(field));
    }
}

/// Requirement X11.
#[tokio::test]
async fn runs_deliveries_dead_letters_and_outbox_age_are_metrics() {
    on_both(async |db| {
        let api = open(db).await;
        let receiver = Receiver::start(Behavior::Respond(200)).await;
        let scrape = async || String::from_utf8(api.get("/metrics").await.body.to_vec()).unwrap();
        // Counters start at the first scrape.
        scrape().await;
        let on_topic = |name: &str, target: Value| {
            json!({"name": name, "source": "pubsub", "filter": {"topic": "t"}, "target": target, "retry": {"max_attempts": 1}})
        };
        let broken = json!({"job": {"queue": "q", "kind": "k", "subject": "{{ data.a }}"}});
        for (name, target) in [("calls", json!({"http": {"url": receiver.url()}})), ("breaks", broken)] {
            assert_eq!(api.post("/api/v1/triggers", on_topic(name, target)).await.status, 201);
        }
        api.post("/api/v1/topics/t", json!({"a": "\u{202e}hidden"})).await;
        wait_until("everything is counted", async || {
            let figures = scrape().await;
            let counted = |name: &str| figures.lines().any(|line| line.starts_with(name) && !line.ends_with(" 0"));
            figures.contains("windlass_outbox_age_seconds ")
                && counted("windlass_dead_letters 1")
                && counted(r#"windlass_trigger_runs_total{outcome="fired"}"#)
                && counted(r#"windlass_trigger_runs_total{outcome="failed"}"#)
                && counted(r#"windlass_trigger_runs_total{outcome="dead"}"#)
                && counted(r#"windlass_delivery_attempts_total{outcome="delivered"}"#)
        })
        .await;
    })
    .await;
}

/// Requirement T2.
#[tokio::test]
async fn a_trigger_request_is_not_sent_once_its_principal_lacks_the_right() {
    on_both(async |db| {
        let api = open(db).await;
        let receiver = Receiver::start(Behavior::Respond(200)).await;
        let root = api.caller(json!({"name": "root", "role": "admin"})).await;
        let made = root.post("/api/v1/tokens", json!({"name": "ann", "role": "admin"})).await.json();
        let ann = Caller { api: &api, token: made["token"].as_str().unwrap().to_owned() };
        let trigger = json!({"name": "t", "source": "pubsub", "filter": {"topic": "t"},
                             "target": {"http": {"url": receiver.url()}}});
        assert_eq!(ann.post("/api/v1/triggers", trigger).await.status, 201);
        root.post("/api/v1/topics/t", json!(1)).await;
        let only = async || root.get("/api/v1/deliveries").await.json()["items"][0].clone();
        wait_until("the delivery is delivered", async || only().await["state"] == "delivered").await;
        assert_eq!(root.delete(&format!("/api/v1/tokens/{}", made["id"].as_str().unwrap())).await.status, 204);
        let id = only().await["id"].as_str().unwrap().to_owned();
        assert_eq!(root.post(&format!("/api/v1/deliveries/{id}/redeliver"), json!({})).await.status, 202);
        wait_until("the delivery fails", async || only().await["state"] == "failed").await;
        let error = only().await["error"].as_str().unwrap().to_owned();
        assert_eq!(error, "the principal ann lacks the right manage_triggers");
        assert_eq!(receiver.requests().len(), 1, "the request is not sent again");
    })
    .await;
}
