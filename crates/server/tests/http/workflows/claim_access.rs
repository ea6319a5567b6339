//! A worker reads the artifacts and results that the handler of a claimed job refers to, and nothing else.

use axum::body::Body;
use serde_json::{Value, json};
use testkit::on_both;

use crate::access::tokens::Caller;
use crate::api::{Api, Response, request};

impl Caller<'_> {
    async fn put_artifact(&self, job: &str, epoch: Option<i64>, name: &str) {
        let put = request("PUT", &format!("/api/v1/jobs/{job}/artifacts/{name}"));
        let put = match epoch {
            Some(epoch) => put.header("x-windlass-epoch", epoch.to_string()),
            None => put,
        };
        assert_eq!(self.send(put.body(Body::from("content")).unwrap()).await.status, 201);
    }

    async fn get_with_claim(&self, path: &str, claim: &str) -> Response {
        let get = request("GET", &format!("/api/v1/jobs/{path}")).header("x-windlass-claim", claim);
        self.send(get.body(Body::empty()).unwrap()).await
    }

    async fn new_worker(&self, queue: &str) -> String {
        let worker = self.post("/api/v1/workers", json!({"name": "w", "queues": [queue]})).await.json();
        worker["id"].as_str().unwrap().to_owned()
    }

    /// Claims the next job as a new worker. Returns the job, the epoch and the claim for the header.
    async fn claim_as_worker(&self, queue: &str) -> (String, i64, String) {
        let worker = self.new_worker(queue).await;
        let claim = self.post(&format!("/api/v1/workers/{worker}/claim"), json!({"max": 1, "wait_s": 20})).await.json();
        let job = &claim["jobs"][0];
        let id = job["id"].as_str().unwrap().to_owned();
        (id.clone(), job["epoch"].as_i64().unwrap(), format!("{worker}/{id}"))
    }

    async fn record(&self, claim: &str, epoch: i64, ops: Value) {
        let (worker, job) = claim.split_once('/').unwrap();
        let writes = json!({"writes": [{"job_id": job, "epoch": epoch, "ops": ops}]});
        let written = self.post(&format!("/api/v1/workers/{worker}/journal"), writes).await;
        assert_eq!(written.json()["results"][0]["status"], "applied");
    }

    async fn finish(&self, claim: &str, epoch: i64, result: Value) {
        let (worker, job) = claim.split_once('/').unwrap();
        let outcome = json!({"job_id": job, "epoch": epoch, "outcome": "finish", "result": result});
        let path = format!("/api/v1/workers/{worker}/settle");
        let settled = self.post(&path, json!({"outcomes": [outcome]})).await.json();
        assert_eq!(settled["results"][0]["status"], "applied");
    }
}

#[tokio::test]
async fn a_claim_opens_the_artifacts_of_its_job_while_it_is_held() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let root = api.caller(json!({"name": "root", "role": "admin"})).await;
        let worker = api.caller(json!({"name": "w", "role": "worker"})).await;
        let other = root.job("other").await;
        root.put_artifact(&other, None, "secret").await;
        root.job("q").await;
        let (job, epoch, claim) = worker.claim_as_worker("q").await;
        for name in ["step-1", "log"] {
            worker.put_artifact(&job, Some(epoch), name).await;
        }
        let path = format!("{job}/artifacts/step-1");
        let read = worker.get_with_claim(&path, &claim).await;
        assert_eq!((read.status.as_u16(), &read.body[..]), (200, &b"content"[..]));
        worker.get(&format!("/api/v1/jobs/{path}")).await.problem(404, "not_found", None);
        worker.get_with_claim(&format!("{job}/artifacts/log"), &claim).await.problem(404, "not_found", None);
        worker.get_with_claim(&format!("{other}/artifacts/secret"), &claim).await.problem(404, "not_found", None);
        worker.get_with_claim(&other, &claim).await.problem(404, "not_found", None);
        // Another worker, a job that is not claimed, and an unknown worker.
        let idle = worker.new_worker("q").await;
        for wrong in [format!("{idle}/{job}"), format!("{}/{other}", &claim[..36]), format!("{job}/{job}")] {
            worker.get_with_claim(&path, &wrong).await.problem(404, "not_found", None);
        }
        for invalid in ["x", "x/y", &claim[..36]] {
            let refused = worker.get_with_claim(&path, invalid).await;
            refused.problem(400, "invalid_header", Some("X-Windlass-Claim"));
        }
        let producer = api.caller(json!({"name": "p", "role": "producer"})).await;
        producer.get_with_claim(&path, &claim).await.problem(404, "not_found", None);
        let limited = api.caller(json!({"name": "l", "role": "worker", "queues": ["other"]})).await;
        limited.get_with_claim(&path, &claim).await.problem(404, "not_found", None);
        worker.finish(&claim, epoch, json!(1)).await;
        worker.get_with_claim(&path, &claim).await.problem(404, "not_found", None);
    })
    .await;
}

#[tokio::test]
async fn a_claim_opens_the_results_of_needed_jobs_and_of_children() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let root = api.caller(json!({"name": "root", "role": "admin"})).await;
        let worker = api.caller(json!({"name": "w", "role": "worker"})).await;
        let node = |name: &str, queue: &str, needs: &[&str]| {
            json!({"name": name, "queue": queue, "kind": "k", "payload": 1, "needs": needs})
        };
        let nodes = [node("a", "a", &[]), node("b", "b", &[]), node("c", "c", &["a"]), node("d", "other", &["b"])];
        let run = root.post("/api/v1/runs", json!({"nodes": nodes})).await.json();
        let of = |name: &str| run["nodes"][name].as_str().unwrap().to_owned();
        for queue in ["a", "b"] {
            let (job, epoch, claim) = worker.claim_as_worker(queue).await;
            worker.put_artifact(&job, Some(epoch), "part").await;
            worker.finish(&claim, epoch, json!({"from": queue})).await;
        }
        let (job, epoch, claim) = worker.claim_as_worker("c").await;
        let needed = worker.get_with_claim(&of("a"), &claim).await.json();
        assert_eq!((&needed["result"], &needed["payload"]), (&json!({"from": "a"}), &Value::Null));
        assert_eq!(needed["redacted"], json!(["payload"]));
        assert_eq!(worker.get_with_claim(&format!("{}/artifacts/part", of("a")), &claim).await.status, 200);
        worker.get(&format!("/api/v1/jobs/{}", of("a"))).await.problem(404, "not_found", None);
        for path in [of("b"), format!("{}/artifacts/part", of("b"))] {
            worker.get_with_claim(&path, &claim).await.problem(404, "not_found", None);
        }

        let start = json!([{"op": "child", "key": "parts", "jobs": [{"queue": "d", "kind": "k"}]}]);
        root.record(&claim, epoch, start).await;
        let (child, of_child, by_child) = worker.claim_as_worker("d").await;
        worker.get_with_claim(&job, &by_child).await.problem(404, "not_found", None);
        worker.finish(&by_child, of_child, json!("done")).await;
        assert_eq!(worker.get_with_claim(&child, &claim).await.json()["result"], "done");
    })
    .await;
}

#[tokio::test]
async fn a_fork_reads_the_artifacts_that_its_copied_journal_names() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let root = api.caller(json!({"name": "root", "role": "admin"})).await;
        let worker = api.caller(json!({"name": "w", "role": "worker"})).await;
        root.job("q").await;
        let (first, epoch, claim) = worker.claim_as_worker("q").await;
        worker.put_artifact(&first, Some(epoch), "step-1").await;
        let steps = json!([{"op": "step", "key": "a", "result": 1}, {"op": "step", "key": "b", "result": 2}]);
        worker.record(&claim, epoch, steps).await;
        worker.finish(&claim, epoch, json!(1)).await;
        let mut forked = first.clone();
        for _ in 0..2 {
            let fork = root.post(&format!("/api/v1/jobs/{forked}/fork"), json!({"from": "b"})).await;
            assert_eq!(fork.status, 202);
            let (fork, epoch, claim) = worker.claim_as_worker("q").await;
            let path = format!("{first}/artifacts/step-1");
            assert_eq!(worker.get_with_claim(&path, &claim).await.status, 200);
            worker.record(&claim, epoch, json!([{"op": "step", "key": "b", "result": 3}])).await;
            worker.finish(&claim, epoch, json!(1)).await;
            forked = fork;
        }
        // A retry begins with an empty journal.
        assert_eq!(root.post(&format!("/api/v1/jobs/{first}/retry"), json!({})).await.status, 202);
        let (_, _, claim) = worker.claim_as_worker("q").await;
        worker.get_with_claim(&format!("{first}/artifacts/step-1"), &claim).await.problem(404, "not_found", None);
    })
    .await;
}
