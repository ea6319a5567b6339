//! Artifacts belong to the claim that uploads them.

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};
use testkit::on_both;

use crate::api::{Api, request};

fn put(job: &str, epoch: Option<i64>, content: &[u8]) -> Request<Body> {
    let builder = request("PUT", &format!("/api/v1/jobs/{job}/artifacts/a"));
    let builder = match epoch {
        Some(epoch) => builder.header("x-windlass-epoch", epoch.to_string()),
        None => builder,
    };
    builder.body(Body::from(content.to_vec())).unwrap()
}

/// Content above the limit for the database.
fn large(byte: u8) -> Vec<u8> {
    vec![byte; 100_000]
}

async fn content(api: &Api, job: &str) -> Vec<u8> {
    api.get(&format!("/api/v1/jobs/{job}/artifacts/a")).await.body.to_vec()
}

async fn claim_again(api: &Api, worker: &str, job: &str) -> i64 {
    let claim = api.post(&format!("/api/v1/workers/{worker}/claim"), json!({"max": 1})).await.json();
    assert_eq!(claim["jobs"][0]["id"], job);
    claim["jobs"][0]["epoch"].as_i64().unwrap()
}

/// Requirement X3.
#[tokio::test]
async fn an_upload_to_a_claimed_job_requires_its_epoch() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let root = api.caller(json!({"name": "root", "role": "admin"})).await;
        let gpu = api.caller(json!({"name": "w", "role": "worker"})).await;
        let job = root.job("q").await;
        assert_eq!(gpu.send(put(&job, None, b"input")).await.status, 201, "a waiting job has no claim");
        let worker = gpu.post("/api/v1/workers", json!({"name": "w", "queues": ["q"]})).await.json();
        let worker = format!("/api/v1/workers/{}", worker["id"].as_str().unwrap());
        let claimed = gpu.post(&format!("{worker}/claim"), json!({"max": 1})).await.json()["jobs"][0].clone();
        for caller in [&gpu, &root] {
            let refused = caller.send(put(&job, None, b"other")).await;
            refused.problem(409, "epoch_required", Some("X-Windlass-Epoch"));
        }
        let epoch = claimed["epoch"].as_i64().unwrap();
        assert_eq!(gpu.send(put(&job, Some(epoch), b"output")).await.status, 201);
        let outcome = json!({"job_id": job, "epoch": epoch, "outcome": "finish"});
        gpu.post(&format!("{worker}/settle"), json!({"outcomes": [outcome]})).await;
        let late = gpu.send(put(&job, None, b"late")).await;
        late.problem(409, "artifact_exists", None);
        assert_eq!(root.get(&format!("/api/v1/jobs/{job}/artifacts/a")).await.body, "output");
    })
    .await;
}

/// Requirement Q9.
#[tokio::test]
async fn a_later_attempt_replaces_the_artifact_of_an_earlier_one() {
    on_both(async |db| {
        let api = Api::new(db).await;
        for contents in [[large(1), large(2), large(3)], [b"1".to_vec(), b"2".to_vec(), b"3".to_vec()]] {
            let (job, worker, first) = api.claimed("q").await;
            let [one, two, three] = contents;
            assert_eq!(api.send(put(&job, Some(first), &one)).await.status, 201);
            api.send(put(&job, Some(first), &two)).await.problem(409, "artifact_exists", None);
            assert_eq!(api.send(put(&job, Some(first), &one)).await.status, 200);

            api.settle(&worker, json!({"job_id": job, "epoch": first, "outcome": "release"})).await;
            api.send(put(&job, None, &two)).await.problem(409, "artifact_exists", None);
            let second = claim_again(&api, &worker, &job).await;
            assert_eq!(content(&api, &job).await, one, "until the new attempt uploads its own");
            let replaced = api.send(put(&job, Some(second), &two)).await;
            assert_eq!((replaced.status.as_u16(), &replaced.json()["size"]), (201, &json!(two.len())));
            assert_eq!(content(&api, &job).await, two);
            api.send(put(&job, Some(second), &three)).await.problem(409, "artifact_exists", None);
            api.send(put(&job, Some(first), &one)).await.problem(409, "claim_lost", None);

            // The same content belongs to the newest attempt that uploaded it.
            api.settle(&worker, json!({"job_id": job, "epoch": second, "outcome": "release"})).await;
            let third = claim_again(&api, &worker, &job).await;
            assert_eq!(api.send(put(&job, Some(third), &two)).await.status, 200);
            api.send(put(&job, Some(third), &three)).await.problem(409, "artifact_exists", None);
            let listed: Value = api.get(&format!("/api/v1/jobs/{job}/artifacts")).await.json();
            assert_eq!(listed["items"].as_array().unwrap().len(), 1);
            api.settle(&worker, json!({"job_id": job, "epoch": third, "outcome": "finish"})).await;
        }
        // The task may have run meanwhile.
        api.db.pass_ms(2 * 3_600_000).await;
        testkit::eventually::eventually("the replaced blob is deleted", async || {
            api.db.store.collect_garbage(&api.state.blobs).await.unwrap();
            let tenants = std::fs::read_dir(api.blobs.path()).unwrap().map(|entry| entry.unwrap().path());
            let blobs = tenants.filter(|path| path.is_dir()).flat_map(|path| std::fs::read_dir(path).unwrap());
            (blobs.count() == 1).then_some(())
        })
        .await;
    })
    .await;
}

/// Requirement X10.
#[tokio::test]
async fn artifact_routes_refuse_unknown_query_parameters() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let job = api.job("q").await;
        let path = format!("/api/v1/jobs/{job}/artifacts/a");
        let upload = request("PUT", &format!("{path}?epoch=1")).body(Body::from("x")).unwrap();
        api.send(upload).await.problem(400, "invalid_query", Some("epoch"));
        assert_eq!(api.get(&path).await.status, 404, "nothing was stored");
        for path in [format!("{path}?attempt=1"), format!("/api/v1/jobs/{job}/artifacts?attempt=1")] {
            api.get(&path).await.problem(400, "invalid_query", Some("attempt"));
        }
    })
    .await;
}
