//! Q12: workers that serve several tenants take their work in turn, and every word counts in the job's own tenant.

use axum::body::Body;
use serde_json::{Value, json};
use testkit::on_both;

use crate::api::{Api, request};
use crate::tokens::Caller;

async fn tenant<'a>(api: &'a Api, name: &str) -> Caller<'a> {
    server::machine::create_tenant(&api.db.store, name).await.unwrap();
    api.caller(json!({"name": "root", "role": "admin", "tenant": name})).await
}

async fn serving<'a>(api: &'a Api, serves: Value) -> (Caller<'a>, String) {
    let caller = api.caller(json!({"name": "gpu", "role": "worker", "tenant": "system", "serves": serves})).await;
    let worker = caller.post("/api/v1/workers", json!({"name": "w", "queues": ["q"]})).await.json();
    (caller, worker["id"].as_str().unwrap().to_owned())
}

async fn claim(caller: &Caller<'_>, worker: &str, max: usize) -> Vec<Value> {
    let answer = caller.post(&format!("/api/v1/workers/{worker}/claim"), json!({"max": max})).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    answer.json()["jobs"].as_array().unwrap().clone()
}

async fn finish(caller: &Caller<'_>, worker: &str, job: &Value) -> Value {
    let outcome = json!({"job_id": job["id"], "epoch": job["epoch"], "outcome": "finish", "result": 1});
    let path = format!("/api/v1/workers/{worker}/settle");
    caller.post(&path, json!({"outcomes": [outcome]})).await.json()["results"][0]["status"].clone()
}

const JOBS: usize = 10;

/// For how many claims each of B's jobs waits, one after the other, the one that takes it included.
async fn waits(b: &Caller<'_>, gpu: &Caller<'_>, worker: &str) -> Vec<usize> {
    let mut waits = Vec::new();
    for _ in 0..JOBS {
        let job = b.job("q").await;
        let mut turns = 0;
        loop {
            turns += 1;
            let jobs = claim(gpu, worker, 1).await;
            assert_eq!(finish(gpu, worker, &jobs[0]).await, "applied");
            if jobs[0]["id"] == job.as_str() {
                assert_eq!(jobs[0]["tenant"], "b");
                break;
            }
            assert_eq!(jobs[0]["tenant"], "a");
        }
        waits.push(turns);
        assert_eq!(b.get(&format!("/api/v1/jobs/{job}")).await.json()["state"], "succeeded");
    }
    waits
}

/// Of so few the largest.
fn p99(waits: &[usize]) -> usize {
    waits.iter().copied().max().unwrap()
}

#[tokio::test]
async fn q12_a_tenant_that_floods_keeps_no_other_waiting_for_more_than_its_turn() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let (a, b) = (tenant(&api, "a").await, tenant(&api, "b").await);
        let (gpu, worker) = serving(&api, json!("*")).await;
        // Alone, a job of B's is in the next claim; with 100 times as much of A's it is in one of the next two.
        let quiet = waits(&b, &gpu, &worker).await;
        let flood: Vec<Value> = (0..100 * JOBS).map(|_| json!({"queue": "q", "kind": "k"})).collect();
        assert_eq!(a.post("/api/v1/jobs/batch", json!({"jobs": flood})).await.status, 202);
        let flooded = waits(&b, &gpu, &worker).await;
        println!("turns that a job waits: quiet {quiet:?}, flooded {flooded:?}");
        assert!(p99(&flooded) <= 2 * p99(&quiet), "quiet {quiet:?}, flooded {flooded:?}");
        // Three of B's for one of A's, once B weighs that much.
        let quota = store::tenants::quota::Quota { weight: Some(3), ..Default::default() };
        assert!(api.db.store.set_quota(domain::Name::stored("b"), quota, "machine").await.unwrap());
        for _ in 0..12 {
            b.job("q").await;
        }
        let mut turns = Vec::new();
        for _ in 0..9 {
            let jobs = claim(&gpu, &worker, 1).await;
            turns.push(jobs[0]["tenant"].as_str().unwrap().to_owned());
        }
        let run = turns.iter().skip_while(|tenant| *tenant == "b").take(5).cloned().collect::<Vec<_>>();
        assert_eq!(run, ["a", "b", "b", "b", "a"], "{turns:?}");
        let even = store::tenants::quota::Quota::default();
        assert!(api.db.store.set_quota(domain::Name::stored("b"), even, "machine").await.unwrap());
        let tenants: Vec<Value> = claim(&gpu, &worker, 4).await.iter().map(|job| job["tenant"].clone()).collect();
        assert_eq!(tenants.iter().filter(|tenant| **tenant == "b").count(), 2, "a large claim is shared: {tenants:?}");
    })
    .await;
}

#[tokio::test]
async fn q12_a_serving_worker_signals_uploads_and_settles_in_the_jobs_own_tenant_and_in_no_other() {
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
        let put = request("PUT", &format!("/api/v1/jobs/{mine}/artifacts/x")).body(Body::from("bytes")).unwrap();
        assert_eq!(gpu.ask(put).await.status, 201);
        assert_eq!(a.get(&format!("/api/v1/jobs/{mine}/signal")).await.json()["summary"], "half way");
        assert_eq!(a.get(&format!("/api/v1/jobs/{mine}/artifacts/x")).await.status, 200);
        assert_eq!(finish(&gpu, &worker, &json!({"id": other, "epoch": 1})).await, "not_found");
        assert_eq!(b.get(&format!("/api/v1/jobs/{other}")).await.json()["state"], "queued");

        // A cancel reaches it, and a worker that leaves gives its jobs back.
        let cancel = a.post(&format!("/api/v1/jobs/{mine}/cancel"), json!({})).await;
        assert_eq!(cancel.status, 200);
        let heard = gpu.post(&format!("/api/v1/workers/{worker}/heartbeat"), json!({})).await.json();
        assert_eq!(heard["cancel"], json!([mine]));
        let again = a.job("q").await;
        assert_eq!(claim(&gpu, &worker, 1).await[0]["id"], again.as_str());
        assert_eq!(gpu.delete(&format!("/api/v1/workers/{worker}")).await.status, 204);
        assert_eq!(a.get(&format!("/api/v1/jobs/{again}")).await.json()["state"], "queued");
        assert_eq!(api.db.store.verify().await.unwrap().findings, []);
    })
    .await;
}
