//! Runs: start, add nodes, list, get, signal, cancel and retry.

use serde_json::{Value, json};
use testkit::on_both;

use crate::api::{Api, members};

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
