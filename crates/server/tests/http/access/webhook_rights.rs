//! Webhooks and triggers reveal results, errors and payloads only to those who may read them.

use serde_json::{Value, json};
use testkit::on_both;

use crate::access::tokens::Caller;
use crate::api::Api;

const QUEUE: &str = "/api/v1/queues/q";
const URL: &str = "https://hooks.example/secret-path";

fn token(name: &str, role: &str, rights: Value) -> Value {
    json!({"name": name, "role": role, "rights": rights})
}

/// Requirement X7.
#[tokio::test]
async fn a_queue_webhook_requires_the_rights_to_read_what_it_receives() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let root = api.caller(token("root", "admin", json!([]))).await;
        let operator = api.caller(token("o", "operator", json!([]))).await;
        let half = api.caller(token("h", "operator", json!(["read_results"]))).await;
        let reader = api.caller(token("r", "operator", json!(["read_results", "read_logs"]))).await;
        let webhook = |url: &str| json!({"concurrency": 2, "webhook": {"url": url}});
        for caller in [&operator, &half] {
            caller.put(QUEUE, webhook(URL)).await.problem(403, "forbidden", Some("webhook"));
        }
        assert_eq!(operator.put(QUEUE, json!({"concurrency": 1})).await.status, 200);
        assert_eq!(reader.put(QUEUE, webhook(URL)).await.status, 200);

        // What was shown can be written back, here with another limit, but not with another receiver.
        let shown = operator.get(QUEUE).await.json()["settings"]["webhook"].clone();
        assert_eq!(shown, json!({"url": "https://hooks.example"}));
        let kept = operator.put(QUEUE, json!({"concurrency": 3, "webhook": shown})).await;
        assert_eq!((kept.status.as_u16(), &kept.json()["settings"]["concurrency"]), (200, &json!(3)));
        assert_eq!(root.get(QUEUE).await.json()["settings"]["webhook"]["url"], URL);
        let moved = operator.put(QUEUE, webhook("https://hooks.example/other")).await;
        moved.problem(403, "forbidden", Some("webhook"));
        let narrowed =
            json!({"name": "n", "role": "operator", "queues": ["q"], "rights": ["read_results", "read_logs"]});
        let narrowed = api.caller(narrowed).await;
        assert_eq!(narrowed.put(QUEUE, webhook("https://hooks.example/other")).await.status, 200);
        assert_eq!(operator.put(QUEUE, json!({})).await.status, 200, "removing a webhook reveals nothing");
    })
    .await;
}

/// Requirement X7.
#[tokio::test]
async fn a_job_webhook_requires_its_own_job_or_the_rights_to_read_results_and_errors() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let operator = api.caller(token("o", "operator", json!([]))).await;
        let reader = api.caller(token("r", "operator", json!(["read_results", "read_logs"]))).await;
        let producer = api.caller(token("p", "producer", json!([]))).await;
        let job = json!({"queue": "q", "kind": "k", "webhook": {"url": URL}});
        let batch = json!({"jobs": [{"queue": "q", "kind": "k"}, job]});
        for path in ["/api/v1/jobs", "/api/v1/calls"] {
            operator.post(path, job.clone()).await.problem(403, "forbidden", Some("webhook"));
        }
        operator.post("/api/v1/jobs/batch", batch.clone()).await.problem(403, "forbidden", Some("webhook"));
        assert_eq!(reader.get("/api/v1/jobs").await.json()["items"], json!([]), "nothing was created");
        for caller in [&reader, &producer] {
            assert_eq!(caller.post("/api/v1/jobs", job.clone()).await.status, 202);
            assert_eq!(caller.post("/api/v1/jobs/batch", batch.clone()).await.status, 202);
        }
    })
    .await;
}

async fn create(caller: &Caller<'_>, source: &str, filter: Value, job: Value) -> u16 {
    let target = json!({"job": job});
    let name = format!("{source} {filter} {target}").chars().filter(char::is_ascii_alphanumeric).collect::<String>();
    let trigger = json!({"name": name, "source": source, "filter": filter, "target": target});
    caller.post("/api/v1/triggers", trigger).await.status.as_u16()
}

/// Requirement X7.
#[tokio::test]
async fn a_trigger_shows_no_event_data_to_a_principal_that_may_not_read_it() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let blind = api.caller(token("b", "operator", json!(["manage_triggers"]))).await;
        let rights = json!(["manage_triggers", "read_payloads", "read_results", "read_logs"]);
        let reader = api.caller(token("r", "operator", rights)).await;
        let into = |more: Value| {
            let mut job = json!({"queue": "made", "kind": "k"});
            job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            job
        };
        let on_job = json!({"queue": "q"});
        let on_key = json!({"collection": "c"});
        // The payload of the job that the trigger makes is hidden from this principal too.
        for (source, filter) in [("job", &on_job), ("kv", &on_key)] {
            assert_eq!(create(&blind, source, filter.clone(), into(json!({}))).await, 201);
        }
        let shown = [
            json!({"unique_key": "{{ data.result }}"}),
            json!({"tags": ["{{ data.value }}"]}),
            json!({"webhook": {"url": URL}}),
        ];
        for (source, filter) in [("job", &on_job), ("kv", &on_key)] {
            for more in &shown {
                assert_eq!(create(&blind, source, filter.clone(), into(more.clone())).await, 403, "{source} {more}");
                assert_eq!(create(&reader, source, filter.clone(), into(more.clone())).await, 201, "{source} {more}");
            }
        }
        let tested = json!({"queue": "q", "when": "data.result == 1"});
        assert_eq!(
            create(&blind, "job", tested.clone(), into(json!({}))).await,
            403,
            "a test reveals whether the trigger fires"
        );
        assert_eq!(create(&reader, "job", tested, into(json!({}))).await, 201);
    })
    .await;
}

/// Requirement X7.
#[tokio::test]
async fn the_body_of_a_delivery_requires_the_right_to_read_its_event() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let root = api.caller(token("root", "admin", json!([]))).await;
        let payloads = api.caller(token("p", "viewer", json!(["read_payloads"]))).await;
        let results = api.caller(token("r", "viewer", json!(["read_results"]))).await;
        let of_key =
            json!({"name": "t", "source": "kv", "filter": {"collection": "c"}, "target": {"http": {"url": URL}}});
        assert_eq!(root.post("/api/v1/triggers", of_key).await.status, 201);
        root.put("/api/v1/kv/c/k", json!("of a key")).await;
        let job = json!({"queue": "q", "kind": "k", "webhook": {"url": URL}});
        root.post("/api/v1/jobs", job).await;
        let worker = root.post("/api/v1/workers", json!({"name": "w", "queues": ["q"]})).await.json();
        let worker = format!("/api/v1/workers/{}", worker["id"].as_str().unwrap());
        let claimed = root.post(&format!("{worker}/claim"), json!({"max": 1})).await.json()["jobs"][0].clone();
        let outcome =
            json!({"job_id": claimed["id"], "epoch": claimed["epoch"], "outcome": "finish", "result": "of a job"});
        root.post(&format!("{worker}/settle"), json!({"outcomes": [outcome]})).await;

        for (source, text, reader, other) in
            [("kv", "of a key", &payloads, &results), ("job", "of a job", &results, &payloads)]
        {
            let path = testkit::eventually::eventually("the delivery is stored", async || {
                let page = root.get("/api/v1/deliveries").await.json();
                let items = page["items"].as_array().unwrap().clone();
                let of = items.into_iter().find(|item| item["source"] == source && item["op"] != "working");
                of.map(|item| format!("/api/v1/deliveries/{}", item["id"].as_str().unwrap()))
            })
            .await;
            assert!(reader.get(&path).await.json()["body"].to_string().contains(text), "{source}");
            assert_eq!(other.get(&path).await.json()["body"], Value::Null, "{source}");
        }
    })
    .await;
}

/// Requirement X7.
#[tokio::test]
async fn a_dry_run_of_another_principals_script_requires_the_rights_to_read() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let root = api.caller(token("root", "admin", json!([]))).await;
        let blind = api.caller(token("b", "operator", json!(["manage_triggers"]))).await;
        let rights = json!(["manage_triggers", "read_payloads", "read_results", "read_logs"]);
        let reader = api.caller(token("r", "operator", rights)).await;
        root.put("/api/v1/kv/c/k", json!("hidden")).await;
        let script = |name: &str, source: &str| {
            json!({"name": name, "source": "pubsub", "filter": {"topic": "t"}, "target": {"script": source}})
        };
        let made = root.post("/api/v1/triggers", script("reads", "kv_get(\"c\", data)")).await.json();
        let fire = format!("/api/v1/triggers/{}/fire", made["id"].as_str().unwrap());
        let dry = json!({"dry_run": true, "data": "k"});
        blind.post(&fire, dry.clone()).await.problem(403, "forbidden", None);
        let shown = reader.post(&fire, dry.clone()).await;
        assert!(shown.json().to_string().contains("hidden"), "{}", shown.json());
        let own = blind.post("/api/v1/triggers", script("own", "1 + 1")).await.json();
        let fire = format!("/api/v1/triggers/{}/fire", own["id"].as_str().unwrap());
        assert_eq!(blind.post(&fire, dry).await.status, 200);
    })
    .await;
}

/// Requirement X7.
#[tokio::test]
async fn a_search_finds_no_error_message_that_its_caller_may_not_read() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let root = api.caller(token("root", "admin", json!([]))).await;
        root.job("q").await;
        let worker = root.post("/api/v1/workers", json!({"name": "w", "queues": ["q"]})).await.json();
        let worker = format!("/api/v1/workers/{}", worker["id"].as_str().unwrap());
        let claimed = root.post(&format!("{worker}/claim"), json!({"max": 1})).await.json()["jobs"][0].clone();
        let outcome = json!({"job_id": claimed["id"], "epoch": claimed["epoch"], "outcome": "fail",
            "error": {"code": "boom", "message": "the password is hunter2", "retryable": false}});
        root.post(&format!("{worker}/settle"), json!({"outcomes": [outcome]})).await;
        for (rights, found) in
            [(json!([]), 0), (json!(["read_payloads"]), 0), (json!(["read_payloads", "read_logs"]), 1)]
        {
            let viewer = api.caller(token("v", "viewer", rights.clone())).await;
            let page = viewer.get("/api/v1/jobs?text=hunter2").await.json();
            assert_eq!(page["items"].as_array().unwrap().len(), found, "{rights}");
            assert_eq!(viewer.get("/api/v1/jobs?text=boom").await.json()["items"].as_array().unwrap().len(), 1);
        }
    })
    .await;
}
