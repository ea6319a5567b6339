//! Quotas of a tenant, and the 429 that names the exhausted one.

use domain::Name;
use serde_json::{Value, json};
use store::access::tenants::quota::Quota;
use testkit::eventually::wait_until;
use testkit::on_both;

use crate::access::tokens::Caller;
use crate::api::{Api, Response, json_request};

/// Enqueues a job with a fixed idempotency key.
async fn enqueue_with_key(caller: &Caller<'_>, job: Value) -> Response {
    let mut request = json_request("POST", "/api/v1/jobs", &job);
    request.headers_mut().insert("idempotency-key", "once".parse().unwrap());
    caller.send(request).await
}

/// Requirement Q12.
#[tokio::test]
async fn an_exhausted_quota_returns_429_with_its_name_and_stores_nothing() {
    on_both(async |db| {
        let api = Api::new(db).await;
        server::access::local_admin::create_tenant(&api.db.store, "small").await.unwrap();
        let small = api.caller(json!({"name": "p", "role": "admin", "tenant": "small"})).await;
        let free = api.caller(json!({"name": "p", "role": "admin"})).await;
        let set = async |quota| assert!(api.db.store.set_quota(Name::stored("small"), quota, "machine").await.unwrap());

        set(Quota { waiting_jobs: Some(3), ..Quota::default() }).await;
        let first = enqueue_with_key(&small, json!({"queue": "q", "kind": "k"})).await.json();
        for _ in 0..2 {
            small.job("q").await;
        }
        let again = enqueue_with_key(&small, json!({"queue": "q", "kind": "k"})).await;
        assert_eq!((again.status.as_u16(), &again.json()["id"]), (200, &first["id"]), "an accepted job is repeated");
        enqueue_with_key(&small, json!({"queue": "q", "kind": "other"})).await.problem(
            422,
            "idempotency_key_reused",
            Some("Idempotency-Key"),
        );
        let over = small.post("/api/v1/jobs", json!({"queue": "q", "kind": "k"})).await;
        over.problem(429, "over_quota", Some("waiting_jobs"));
        assert!(over.header("retry-after").parse::<u64>().unwrap() > 0);
        let batch = json!({"jobs": [{"queue": "q", "kind": "k"}, {"queue": "q", "kind": "k"}]});
        small.post("/api/v1/jobs/batch", batch).await.problem(429, "over_quota", Some("waiting_jobs"));
        assert_eq!(small.get("/api/v1/jobs").await.json()["items"].as_array().unwrap().len(), 3);
        free.job("q").await;
        small.run("q").await;
        let enqueue = async || small.post("/api/v1/jobs", json!({"queue": "q", "kind": "k"})).await.status == 202;
        wait_until("an ended job frees quota", enqueue).await;

        // So low that a second job is rejected, however slow this machine is.
        set(Quota { jobs_per_s: Some(0.001), ..Quota::default() }).await;
        let mut statuses = Vec::new();
        for _ in 0..20 {
            statuses.push(small.post("/api/v1/jobs", json!({"queue": "q", "kind": "k"})).await.status.as_u16());
        }
        assert!(statuses.contains(&202) && statuses.contains(&429), "{statuses:?}");

        set(Quota { payload_bytes_per_s: Some(1_000.0), ..Quota::default() }).await;
        let large = json!({"queue": "q", "kind": "k", "payload": "x".repeat(100_000)});
        // The bucket may go negative: the first request is accepted and its debt takes more than a minute to refill.
        assert_eq!(small.post("/api/v1/jobs", large.clone()).await.status, 202);
        small.post("/api/v1/jobs", large).await.problem(429, "over_quota", Some("payload_bytes_per_s"));

        set(Quota { waiting_jobs: Some(0), ..Quota::default() }).await;
        let call = json!({"queue": "q", "kind": "k", "timeout_s": 1});
        small.post("/api/v1/calls", call).await.problem(429, "over_quota", Some("waiting_jobs"));

        set(Quota { triggers: Some(1), ..Quota::default() }).await;
        let trigger = |name: &str| {
            let target = json!({"job": {"queue": "q", "kind": "k"}});
            json!({"name": name, "source": "kv", "filter": {"collection": "c"}, "target": target})
        };
        assert_eq!(small.post("/api/v1/triggers", trigger("one")).await.status, 201);
        small.post("/api/v1/triggers", trigger("two")).await.problem(429, "over_quota", Some("triggers"));
        assert_eq!(free.post("/api/v1/triggers", trigger("two")).await.status, 201);

        set(Quota::default()).await;
        small.job("q").await;
        assert_eq!(small.post("/api/v1/triggers", trigger("two")).await.status, 201);
    })
    .await;
}

/// Requirement Q12.
#[tokio::test]
async fn effects_of_a_trigger_wait_for_quota_and_are_not_lost() {
    on_both(async |db| {
        let api = Api::new(db).await;
        server::access::local_admin::create_tenant(&api.db.store, "small").await.unwrap();
        let small = api.caller(json!({"name": "p", "role": "admin", "tenant": "small"})).await;
        let quota = Quota { waiting_jobs: Some(1), ..Quota::default() };
        assert!(api.db.store.set_quota(Name::stored("small"), quota, "machine").await.unwrap());
        let on = |topic: &str, target: Value| {
            json!({"name": topic, "source": "pubsub", "filter": {"topic": topic}, "target": target})
        };
        for trigger in [
            on("jobs", json!({"job": {"queue": "made", "kind": "k"}})),
            on("last", json!({"script": "kv_set(\"c\", \"k\", 1)"})),
        ] {
            assert_eq!(small.post("/api/v1/triggers", trigger).await.status, 201);
        }
        for number in 0..3 {
            assert_eq!(small.post("/api/v1/topics/jobs", json!(number)).await.status, 202);
        }
        small.post("/api/v1/topics/last", json!(0)).await;
        let listed = async |state: &str| {
            let page = small.get(&format!("/api/v1/jobs?queue=made&state={state}")).await.json();
            page["items"].as_array().unwrap().len()
        };
        wait_until("all events are dispatched", async || small.get("/api/v1/kv/c/k").await.status == 200).await;
        wait_until("one job is admitted", async || listed("queued").await == 1).await;
        for done in 1..=3 {
            wait_until("the next job is admitted", async || {
                assert!(listed("queued").await <= 1, "the quota holds");
                api.db.pass_ms(5_000).await;
                listed("queued").await == 1
            })
            .await;
            small.run("made").await;
            wait_until("the job succeeds", async || listed("succeeded").await == done).await;
        }
    })
    .await;
}
