//! Runs: start, add nodes, list, get, signal, cancel and retry.

use axum::body::Body;
use serde_json::{Value, json};
use testkit::on_both;

use crate::api::{Api, members, request};
use crate::signals::streams::events;

fn node(name: &str, needs: &[&str]) -> Value {
    json!({"name": name, "queue": "q", "kind": "k", "needs": needs})
}

#[tokio::test]
async fn a_run_is_started_shown_and_ended() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let nodes = [node("a", &[]), node("b", &["a"])];
        let body = json!({"id": "r", "name": "pipeline", "tags": ["x"], "nodes": nodes});
        let started = api.post("/api/v1/runs", body.clone()).await;
        assert_eq!(started.status, 202);
        assert_eq!(members(&started.json()), ["id", "nodes"]);
        let run = api.get("/api/v1/runs/r").await.json();
        assert_eq!((&run["state"], &run["counts"]["live"]), (&json!("running"), &json!(2)));
        assert_eq!(run["nodes"][1]["state"], "waiting");
        assert_eq!(run["nodes"][1]["needs"], json!(["a"]));
        assert_eq!(api.post("/api/v1/runs", body).await.status, 409);
        let signal = api.get("/api/v1/runs/r/signal").await.json();
        assert_eq!((&signal["kind"], &signal["critical_path"]), (&json!("queued"), &json!(["a", "b"])));
        let listed = api.get("/api/v1/runs?name=pipeline&tag=x&state=running").await.json();
        assert_eq!(listed["items"][0]["id"], "r");
        let more = json!({"nodes": [node("c", &["b"])]});
        assert_eq!(api.post("/api/v1/runs/r/nodes", more).await.status, 202);
        let canceled = api.post("/api/v1/runs/r/cancel", json!({})).await;
        assert_eq!(canceled.status, 200);
        assert_eq!(canceled.json()["state"], "canceled");
        let retried = api.post("/api/v1/runs/r/retry", json!({})).await;
        assert_eq!(retried.status, 202);
        assert_eq!(api.post("/api/v1/runs/r/retry", json!({})).await.status, 409);
    })
    .await;
}

#[tokio::test]
async fn a_bad_run_is_refused_with_the_field() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let cases = [
            (json!({"nodes": []}), "nodes"),
            (json!({"nodes": [node("a", &["b"]), node("b", &["a"])]}), "nodes[0].needs"),
            (json!({"nodes": [node("a", &["missing"])]}), "nodes[0].needs"),
            (json!({"nodes": [node("a", &[]), node("a", &[])]}), "nodes[1].name"),
            (json!({"on_failure": "stop", "nodes": [node("a", &[])]}), "on_failure"),
            (json!({"nodes": [{"name": "a", "queue": "q", "kind": "k", "when": "later"}]}), "nodes[0].when"),
        ];
        for (body, field) in cases {
            let response = api.post("/api/v1/runs", body.clone()).await;
            assert_eq!(response.status, 422, "{body}");
            assert!(response.json().to_string().contains(field), "{}", response.json());
        }
        assert_eq!(api.get("/api/v1/runs").await.json()["items"], json!([]));
        assert_eq!(api.get("/api/v1/runs/none").await.status, 404);
    })
    .await;
}

#[tokio::test]
async fn a_run_has_an_eta_from_its_graph_and_a_critical_path_by_duration() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let worker = json!({"name": "w", "queues": ["q"], "lease_s": 3_600});
        let worker = api.post("/api/v1/workers", worker).await.json()["id"].as_str().unwrap().to_owned();
        // All durations are minutes, so that the run time of the test itself is negligible.
        for (kind, minutes) in [("short", 1), ("long", 10)] {
            for _ in 0..6 {
                api.post("/api/v1/jobs", json!({"queue": "q", "kind": kind})).await;
                let claimed = api.next_job(&worker).await;
                api.db.pass_ms(minutes * 60_000).await;
                let outcome = json!({"job_id": claimed["id"], "epoch": claimed["epoch"], "outcome": "finish"});
                api.settle(&worker, outcome).await;
            }
        }
        api.db.store.fold_duration_samples().await.unwrap();
        let of_kind =
            |name: &str, kind: &str, needs: &[&str]| json!({"name": name, "queue": "q", "kind": kind, "needs": needs});
        let nodes = [
            of_kind("a", "short", &[]),
            of_kind("b", "short", &["a"]),
            of_kind("c", "long", &[]),
            of_kind("join", "short", &["b", "c"]),
        ];
        api.post("/api/v1/runs", json!({"id": "r", "nodes": nodes})).await;
        let signal = api.get_when("/api/v1/runs/r/signal", |signal| !signal["eta_seconds"].is_null()).await;
        assert_eq!(signal["critical_path"], json!(["c", "join"]), "two nodes that take longer than three");
        // One worker with one slot: 1 + 1 + 10 + 1 minutes.
        let p50 = signal["eta_seconds"]["p50"].as_f64().unwrap();
        assert!((700.0..900.0).contains(&p50), "{signal}");
        assert!(signal["eta_seconds"]["p90"].as_f64().unwrap() >= p50);
        assert!(signal["summary"].as_str().unwrap().ends_with("; ends in about 13 min."), "{signal}");
        api.post("/api/v1/runs", json!({"id": "new", "nodes": [of_kind("a", "new", &[])]})).await;
        let unknown = api.get("/api/v1/runs/new/signal").await.json();
        assert_eq!(unknown["eta_seconds"], Value::Null, "a kind without history");
    })
    .await;
}

#[tokio::test]
async fn a_run_stream_follows_the_run_to_its_end() {
    on_both(async |db| {
        let api = Api::new(db).await;
        api.post("/api/v1/runs", json!({"id": "r", "nodes": [node("a", &[])]})).await;
        let get = || request("GET", "/api/v1/runs/r/stream").body(Body::empty()).unwrap();
        let first = events(&api, get(), |seen| !seen.is_empty()).await;
        assert_eq!((&first[0]["kind"], &first[0]["critical_path"]), (&json!("queued"), &json!(["a"])));
        let reading = events(&api, get(), |_| false);
        let work = async {
            let worker = api.worker("q").await;
            let claimed = api.next_job(&worker).await;
            let outcome = json!({"job_id": claimed["id"], "epoch": claimed["epoch"], "outcome": "finish"});
            api.settle(&worker, outcome).await;
        };
        let (seen, ()) = tokio::join!(reading, work);
        let last = seen.last().expect("the stream sends events");
        assert_eq!((&last["kind"], &last["progress"]), (&json!("succeeded"), &json!(1.0)));
        let ended = events(&api, get(), |_| false).await;
        assert_eq!(ended.len(), 1, "the stream of an ended run has one event");
        api.get("/api/v1/runs/none/stream").await.problem(404, "not_found", None);
    })
    .await;
}
