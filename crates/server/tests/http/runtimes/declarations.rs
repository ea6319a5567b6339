//! Declarations of runtimes: validation, placement, nodes and moves.

use serde_json::{Value, json};
use testkit::{Database, on_both};

use crate::api::Api;
use crate::runtimes::operations::{Driven, PATH, spec};

/// Requirement X10.
#[tokio::test]
async fn an_invalid_runtime_declaration_names_the_field_and_changes_nothing() {
    let api = Api::new(Database::sqlite().await).await;
    let with = |member: &str, value: Value| {
        let mut spec = spec();
        spec[member] = value;
        spec
    };
    for (body, field) in [
        (with("image", json!("")), "image"),
        (with("image", json!("a b")), "image"),
        (with("network", json!("host")), "network"),
        (with("network", json!("container:x")), "network"),
        (with("volumes", json!([{"path": "/a/../etc"}])), "volumes[0].path"),
        (with("volumes", json!([{"path": "/"}])), "volumes[0].path"),
        (with("volumes", json!([{"path": "/a"}, {"path": "/a/b"}])), "volumes[1].path"),
        (with("ports", json!([{"container": 0}])), "ports[0].container"),
        (with("ports", json!([])), "probe.port"),
        (with("memory_mb", json!(1)), "memory_mb"),
        (with("cpus", json!(0)), "cpus"),
        (with("desired", json!("flying")), "desired"),
        (with("ttl_s", json!(0)), "ttl_s"),
        (with("env", json!({"A=B": "x"})), "env"),
        (with("env", json!({"A": "********"})), "env.A"),
        (with("privileged", json!(true)), "privileged"),
        (with("devices", json!(["/dev/kvm"])), "devices"),
    ] {
        api.put(PATH, body).await.problem(422, "invalid_field", Some(field));
    }
    api.put("/api/v1/runtimes/a%2Fb", spec()).await.problem(422, "invalid_field", Some("name"));
    api.get(PATH).await.problem(404, "not_found", None);
    api.put(PATH, spec()).await;
    api.post(&format!("{PATH}/start"), json!({})).await.problem(503, "service_unavailable", None);
    api.post(&format!("{PATH}/start"), json!({"image": "a b"})).await.problem(422, "invalid_field", Some("image"));
    let masked = with("env", json!({"TOKEN": "********", "MORE": "x"}));
    assert_eq!(api.put(PATH, masked).await.json()["env"], json!({"TOKEN": "********", "MORE": "********"}));
}

/// Requirement R1.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_listed_and_an_invalid_placement_or_move_is_rejected() {
    on_both(async |db| {
        let driven = Driven::new(db).await;
        let mut odd = spec();
        odd["placement"] = json!({"labels": {"gpu": ""}});
        driven.api.put(PATH, odd.clone()).await.problem(422, "invalid_field", Some("placement.labels.gpu"));
        odd["placement"] = json!({"label": {}});
        assert_eq!(driven.api.put(PATH, odd).await.status, 422, "an unknown member");
        driven.declare_and_start().await;
        driven.wait_for_health("healthy").await;
        // After a pause of the machine the node is lost, or its engine unavailable, until the next heartbeat.
        let is_there = |node: &Value| node["is_lost"] == false && node["fault"].is_null();
        let nodes = driven.api.get_when("/api/v1/nodes", |nodes| is_there(&nodes["items"][0])).await;
        let node = &nodes["items"][0];
        let actual = (&node["name"], &node["slots"], &node["slots_taken"]);
        assert_eq!(actual, (&json!("here"), &Value::Null, &json!(1)), "{node}");
        let page = driven.api.get("/runtimes").await;
        assert!(String::from_utf8_lossy(&page.body).contains("id=\"node-here\""));
        let to = async |node: &str| driven.api.post(&format!("{PATH}/move"), json!({"node": node})).await;
        to("here").await.problem(409, "conflict", None);
        to("there").await.problem(409, "conflict", None);
        driven.operate("stop", json!({})).await;
        to("there").await.problem(503, "service_unavailable", None);
        let missing = driven.api.post("/api/v1/runtimes/missing/move", json!({})).await;
        missing.problem(404, "not_found", None);
        assert_eq!(driven.api.post(&format!("{PATH}/move"), json!({"nod": "x"})).await.status, 422);
    })
    .await;
}
