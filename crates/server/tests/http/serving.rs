//! Workers that serve several tenants: fair shares between tenants, and isolation of each job's tenant.

use axum::body::Body;
use serde_json::{Value, json};
use testkit::on_both;

use crate::access::tokens::Caller;
use crate::api::{Api, request};

async fn tenant<'a>(api: &'a Api, name: &str) -> Caller<'a> {
    server::access::local_admin::create_tenant(&api.db.store, name).await.unwrap();
    api.caller(json!({"name": "root", "role": "admin", "tenant": name})).await
}

async fn serving<'a>(api: &'a Api, serves: Value) -> (Caller<'a>, String) {
    let caller = api.caller(json!({"name": "gpu", "role": "worker", "tenant": "system", "serves": serves})).await;
    let worker = caller.post("/api/v1/workers", json!({"name": "w", "queues": ["q"]})).await.json();
    (caller, worker["id"].as_str().unwrap().to_owned())
}

async fn claim(caller: &Caller<'_>, worker: &str, max: usize) -> Vec<Value> {
    let response = caller.post(&format!("/api/v1/workers/{worker}/claim"), json!({"max": max})).await;
    assert_eq!(response.status, 200, "{:?}", response.body);
    response.json()["jobs"].as_array().unwrap().clone()
}

async fn finish(caller: &Caller<'_>, worker: &str, job: &Value) -> Value {
    let outcome = json!({"job_id": job["id"], "epoch": job["epoch"], "outcome": "finish", "result": 1});
    let path = format!("/api/v1/workers/{worker}/settle");
    caller.post(&path, json!({"outcomes": [outcome]})).await.json()["results"][0]["status"].clone()
}

const JOBS: usize = 10;

/// Returns for each of B's jobs the number of claims until it is claimed.
async fn claims_per_job(b: &Caller<'_>, gpu: &Caller<'_>, worker: &str) -> Vec<usize> {
    let mut counts = Vec::new();
    for _ in 0..JOBS {
        let job = b.job("q").await;
        let mut claims = 0;
        loop {
            claims += 1;
            let jobs = claim(gpu, worker, 1).await;
            assert_eq!(finish(gpu, worker, &jobs[0]).await, "applied");
            if jobs[0]["id"] == job.as_str() {
                assert_eq!(jobs[0]["tenant"], "b");
                break;
            }
            assert_eq!(jobs[0]["tenant"], "a");
        }
        counts.push(claims);
        assert_eq!(b.get(&format!("/api/v1/jobs/{job}")).await.json()["state"], "succeeded");
    }
    counts
}

/// With so few values this is the maximum.
fn p99(counts: &[usize]) -> usize {
    counts.iter().copied().max().unwrap()
}

/// Requirement Q12.
#[tokio::test]
async fn a_flooding_tenant_does_not_delay_others_beyond_their_share() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let (a, b) = (tenant(&api, "a").await, tenant(&api, "b").await);
        let (gpu, worker) = serving(&api, json!("*")).await;
        // Alone, each of B's jobs is in the next claim. With 100 times as many of A's jobs it is in one of the next
        // two.
        let quiet = claims_per_job(&b, &gpu, &worker).await;
        let flood: Vec<Value> = (0..100 * JOBS).map(|_| json!({"queue": "q", "kind": "k"})).collect();
        assert_eq!(a.post("/api/v1/jobs/batch", json!({"jobs": flood})).await.status, 202);
        let flooded = claims_per_job(&b, &gpu, &worker).await;
        println!("claims per job: quiet {quiet:?}, flooded {flooded:?}");
        assert!(p99(&flooded) <= 2 * p99(&quiet), "quiet {quiet:?}, flooded {flooded:?}");
        // With weight 3 B gets three jobs for each of A's.
        let quota = store::access::tenants::quota::Quota { weight: Some(3), ..Default::default() };
        assert!(api.db.store.set_quota(domain::Name::stored("b"), quota, "machine").await.unwrap());
        for _ in 0..12 {
            b.job("q").await;
        }
        let mut tenants = Vec::new();
        for _ in 0..9 {
            let jobs = claim(&gpu, &worker, 1).await;
            tenants.push(jobs[0]["tenant"].as_str().unwrap().to_owned());
        }
        let run = tenants.iter().skip_while(|tenant| *tenant == "b").take(5).cloned().collect::<Vec<_>>();
        assert_eq!(run, ["a", "b", "b", "b", "a"], "{tenants:?}");
        let even = store::access::tenants::quota::Quota::default();
        assert!(api.db.store.set_quota(domain::Name::stored("b"), even, "machine").await.unwrap());
        let tenants: Vec<Value> = claim(&gpu, &worker, 4).await.iter().map(|job| job["tenant"].clone()).collect();
        assert_eq!(tenants.iter().filter(|tenant| **tenant == "b").count(), 2, "a large claim is shared: {tenants:?}");
    })
    .await;
}

/// Requirement Q12.
#[tokio::test]
async fn a_serving_worker_acts_only_in_the_tenant_of_its_job() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let (a, b) = (tenant(&api, "a").await, tenant(&api, "b").await);
        let (gpu, worker) = serving(&api, json!(["a"])).await;
        let (mine, other) = (a.job("q").await, b.job("q").await);
        let jobs = claim(&gpu, &worker, 10).await;
        assert_eq!(jobs.iter().map(|job| job["id"].as_str().unwrap()).collect::<Vec<_>>(), [mine.as_str()]);
        let signal = json!({"epoch": jobs[0]["epoch"], "summary": "half way"});
        assert_eq!(gpu.put(&format!("/api/v1/jobs/{mine}/signal"), signal.clone()).await.status, 200);
        assert_eq!(gpu.put(&format!("/api/v1/jobs/{other}/signal"), signal).await.status, 404);
        let put = request("PUT", &format!("/api/v1/jobs/{mine}/artifacts/x"));
        let put = put.header("x-windlass-epoch", jobs[0]["epoch"].to_string()).body(Body::from("bytes")).unwrap();
        assert_eq!(gpu.send(put).await.status, 201);
        assert_eq!(a.get(&format!("/api/v1/jobs/{mine}/signal")).await.json()["summary"], "half way");
        assert_eq!(a.get(&format!("/api/v1/jobs/{mine}/artifacts/x")).await.status, 200);
        assert_eq!(finish(&gpu, &worker, &json!({"id": other, "epoch": 1})).await, "not_found");
        assert_eq!(b.get(&format!("/api/v1/jobs/{other}")).await.json()["state"], "queued");

        // The heartbeat returns a cancel, and a worker that deregisters releases its jobs.
        let cancel = a.post(&format!("/api/v1/jobs/{mine}/cancel"), json!({})).await;
        assert_eq!(cancel.status, 200);
        let heartbeat = gpu.post(&format!("/api/v1/workers/{worker}/heartbeat"), json!({})).await.json();
        assert_eq!(heartbeat["cancel"], json!([mine]));
        let again = a.job("q").await;
        assert_eq!(claim(&gpu, &worker, 1).await[0]["id"], again.as_str());
        assert_eq!(gpu.delete(&format!("/api/v1/workers/{worker}")).await.status, 204);
        assert_eq!(a.get(&format!("/api/v1/jobs/{again}")).await.json()["state"], "queued");
        assert_eq!(api.db.store.verify().await.unwrap().findings, []);
    })
    .await;
}
