//! Queues over HTTP.

use serde_json::{Value, json};
use testkit::on_both;

use crate::api::{Api, members};

/// Requirement Q12.
#[tokio::test]
async fn a_queue_stores_settings_and_shows_them_with_its_counts() {
    on_both(async |db| {
        let api = Api::new(db).await;
        api.get("/api/v1/queues/gpu").await.problem(404, "not_found", None);
        let settings = json!({
            "concurrency": 4, "per_key": 2, "rate_per_s": 0.5, "starvation_s": 60,
            "retry": {"initial_s": 60, "maximum_s": 120, "exponent": 2.0, "jitter": 0.0}, "timeout_s": 600,
            "retention_s": 86400, "phases": ["warm-up"], "kinds": {"big": {"timeout_s": 1200}},
        });
        let put = api.put("/api/v1/queues/gpu", settings.clone()).await;
        assert_eq!((put.status.as_u16(), &put.json()["settings"]), (200, &settings));
        api.job("gpu").await;
        let queue = api.get("/api/v1/queues/gpu").await.json();
        assert!(queue["oldest_waiting_at"].is_string());
        let expected = json!({
            "name": "gpu", "paused": false, "paused_reason": null, "paused_by": null, "paused_at": null,
            "settings": settings,
            "counts": {"waiting": 0, "scheduled": 0, "queued": 1, "running": 0, "succeeded": 0, "failed": 0, "canceled": 0},
            "oldest_waiting_at": queue["oldest_waiting_at"], "swaps_made": 0, "swaps_avoided": 0,
        });
        assert_eq!(queue, expected);
        assert_eq!(api.put("/api/v1/queues/gpu", json!({})).await.json()["settings"], json!({}));
    })
    .await;
}

/// Requirement Q12.
#[tokio::test]
async fn a_paused_queue_assigns_no_job_until_it_is_resumed() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let job = api.job("a/b").await;
        let paused = api.post("/api/v1/queues/a%2Fb/pause", json!({"reason": "deploy"})).await.json();
        assert_eq!((&paused["paused"], &paused["paused_reason"]), (&json!(true), &json!("deploy")));
        assert_eq!(paused["paused_by"], "local");
        let worker = api.worker("a/b").await;
        let claim = async || api.post(&format!("/api/v1/workers/{worker}/claim"), json!({"max": 1})).await.json();
        assert_eq!(claim().await, json!({"jobs": []}));
        let why = api.get(&format!("/api/v1/jobs/{job}/why")).await.json();
        assert_eq!(why["reason"], "queue_paused");
        let resumed = api.call("POST", "/api/v1/queues/a%2Fb/resume").await.json();
        assert_eq!((&resumed["paused"], &resumed["paused_at"]), (&json!(false), &Value::Null));
        assert_eq!(claim().await["jobs"][0]["id"], job.as_str());
        api.call("POST", "/api/v1/queues/missing/resume").await.problem(404, "not_found", None);
    })
    .await;
}

#[tokio::test]
async fn queues_are_listed_by_name_in_pages() {
    on_both(async |db| {
        let api = Api::new(db).await;
        for name in ["c", "a", "b"] {
            api.job(name).await;
        }
        let first = api.get("/api/v1/queues?limit=2").await.json();
        assert_eq!(members(&first), ["items", "next_cursor"]);
        let cursor = first["next_cursor"].as_str().unwrap();
        let second = api.get(&format!("/api/v1/queues?limit=2&cursor={cursor}")).await.json();
        let names = |page: &Value| -> Vec<Value> {
            page["items"].as_array().unwrap().iter().map(|queue| queue["name"].clone()).collect()
        };
        assert_eq!((names(&first), names(&second)), (vec![json!("a"), json!("b")], vec![json!("c")]));
        assert_eq!(second["next_cursor"], Value::Null);
    })
    .await;
}

/// Requirement X6.
#[tokio::test]
async fn metrics_contain_only_the_tenant_of_the_caller() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let root = api.caller(json!({"name": "root", "role": "admin"})).await;
        server::access::local_admin::create_tenant(&api.db.store, "other").await.unwrap();
        let other = api.caller(json!({"name": "root", "role": "admin", "tenant": "other"})).await;
        let process = json!({"queue": "fleet", "kind": "k", "selector": {"all": [{"fact": "up", "exists": true}]}});
        assert_eq!(root.put("/api/v1/processes/ours-alone", process).await.status, 200);
        let (job, worker, epoch) = {
            let job = json!({"queue": "ours", "kind": "k", "max_attempts": 1});
            let job = root.post("/api/v1/jobs", job).await.json()["id"].as_str().unwrap().to_owned();
            let worker = root.post("/api/v1/workers", json!({"name": "w", "queues": ["ours"]})).await.json();
            let worker = worker["id"].as_str().unwrap().to_owned();
            let claim = root.post(&format!("/api/v1/workers/{worker}/claim"), json!({"max": 1})).await.json();
            (job, worker, claim["jobs"][0]["epoch"].clone())
        };
        let error = json!({"code": "boom", "message": "it broke"});
        let outcome = json!({"job_id": job, "epoch": epoch, "outcome": "fail", "error": error});
        root.post(&format!("/api/v1/workers/{worker}/settle"), json!({"outcomes": [outcome]})).await;
        let scrape = async |caller: &crate::access::tokens::Caller<'_>| {
            String::from_utf8(caller.get("/metrics").await.body.to_vec()).unwrap()
        };
        metrics::counter!("windlass_pool_load_failures_total", "pool" => "ours-too").increment(1);
        let ours = scrape(&root).await;
        assert!(ours.contains("pool=\"ours-too\""), "{ours}");
        assert!(ours.contains("ours-alone") && ours.contains("windlass_dead_letters 1"), "{ours}");
        let theirs = scrape(&other).await;
        assert!(
            !theirs.contains("ours-alone")
                && !theirs.contains("ours-too")
                && !theirs.contains("queue=\"ours\"")
                && !theirs.contains("windlass_database_bytes")
                && theirs.contains("windlass_workers{state=\"working\"} 0")
                && theirs.contains("windlass_dead_letters 0"),
            "{theirs}"
        );
        let tasks = other.get("/api/v1/tasks").await.json();
        let has_no_details = |task: &Value| task["last_work"].is_null() && task["last_error"].is_null();
        assert!(tasks["items"].as_array().unwrap().iter().all(has_no_details), "{tasks}");
    })
    .await;
}

/// Requirement X7.
#[tokio::test]
async fn a_token_limited_to_queues_lists_only_those() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let root = api.caller(json!({"name": "root", "role": "admin"})).await;
        for queue in ["a", "b", "c", "d", "e"] {
            root.job(queue).await;
        }
        let narrow = api.caller(json!({"name": "n", "role": "viewer", "queues": ["d", "b", "missing"]})).await;
        let first = narrow.get("/api/v1/queues?limit=1").await.json();
        assert_eq!((&first["items"][0]["name"], first["items"].as_array().unwrap().len()), (&json!("b"), 1));
        let path = format!("/api/v1/queues?limit=1&cursor={}", first["next_cursor"].as_str().unwrap());
        let second = narrow.get(&path).await.json();
        assert_eq!((&second["items"][0]["name"], &second["next_cursor"]), (&json!("d"), &Value::Null));
    })
    .await;
}

/// Requirement X7.
#[tokio::test]
async fn the_full_webhook_url_requires_the_right_to_read_payloads() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let root = api.caller(json!({"name": "root", "role": "admin"})).await;
        let operator = api.caller(json!({"name": "o", "role": "operator"})).await;
        let webhook = json!({"webhook": {"url": "https://receiver.invalid:8443/hook?key=hidden"}});
        assert_eq!(root.put("/api/v1/queues/q", webhook.clone()).await.status, 200);
        let shown = operator.get("/api/v1/queues/q").await.json()["settings"].clone();
        assert_eq!(shown["webhook"]["url"], "https://receiver.invalid:8443");
        // Writing back the shortened URL keeps the full one.
        assert_eq!(operator.put("/api/v1/queues/q", shown).await.status, 200);
        assert_eq!(root.get("/api/v1/queues/q").await.json()["settings"]["webhook"], webhook["webhook"]);
        root.job("q").await;
        root.run("q").await;
        let url = async |caller: &crate::access::tokens::Caller<'_>| {
            caller.get("/api/v1/deliveries").await.json()["items"][0]["url"].as_str().unwrap().to_owned()
        };
        assert_eq!(url(&operator).await, "https://receiver.invalid:8443");
        assert_eq!(url(&root).await, "https://receiver.invalid:8443/hook?key=hidden");
    })
    .await;
}

#[tokio::test]
async fn a_queue_is_deleted_once_it_has_no_jobs_and_a_job_creates_it_again() {
    on_both(async |db| {
        let api = Api::new(db).await;
        api.put("/api/v1/queues/gone", json!({"concurrency": 3})).await;
        let job = api.job("gone").await;
        api.job("stays").await;
        let delete = async || api.call("DELETE", "/api/v1/queues/gone").await;
        delete().await.problem(409, "conflict", None);
        api.call("POST", &format!("/api/v1/jobs/{job}/cancel")).await;
        delete().await.problem(409, "conflict", None);
        api.post("/api/v1/queues/gone/prune", json!({"older_than_s": 0})).await;
        assert_eq!(delete().await.status, 204);
        delete().await.problem(404, "not_found", None);
        api.get("/api/v1/queues/gone").await.problem(404, "not_found", None);
        let names = async || -> Vec<Value> {
            let page = api.get("/api/v1/queues").await.json();
            page["items"].as_array().unwrap().iter().map(|queue| queue["name"].clone()).collect()
        };
        assert_eq!(names().await, ["stays"]);
        api.job("gone").await;
        assert_eq!(names().await, ["gone", "stays"]);
        let queue = api.get("/api/v1/queues/gone").await.json();
        assert_eq!((&queue["settings"], &queue["counts"]["canceled"]), (&json!({}), &json!(0)));
        assert_eq!(queue["counts"]["queued"], 1);
    })
    .await;
}
