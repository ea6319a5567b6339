//! Runtimes over HTTP, on a real Docker engine.

use std::time::Duration;

use engine::EngineOptions;
use engine::runtimes::RuntimeOptions;
use serde_json::{Value, json};
use store::db::tx::{Operation, Tx};
use store::{Store, StoreError};
use tempfile::TempDir;
use testkit::docker::{Docker, IMAGE, IMAGE_NEWER, IMAGE_PATCHED, SERVE};
use testkit::eventually::{eventually, wait_until};
use testkit::{Database, on_both};

use crate::api::{Api, Response, request};

pub(crate) const PATH: &str = "/api/v1/runtimes/model";

/// A server that drives a Docker engine, with shorter intervals than in production.
pub(crate) struct Driven {
    pub(crate) api: Api,
    pub(crate) docker: Docker,
    pub(crate) instance: String,
    root: TempDir,
}

impl Driven {
    pub(crate) async fn new(db: Database) -> Self {
        Self::with(db, EngineOptions::default()).await
    }

    pub(crate) async fn with(db: Database, engine: EngineOptions) -> Self {
        let docker = Docker::engine();
        let host = docker.host.clone();
        Self::build(db, docker, &host, engine).await
    }

    async fn at(db: Database, docker: Docker, host: &str) -> Self {
        Self::build(db, docker, host, EngineOptions::default()).await
    }

    async fn build(db: Database, docker: Docker, host: &str, engine: EngineOptions) -> Self {
        let root = tempfile::tempdir().unwrap();
        let instance = db.store.instance().await.unwrap();
        let options = options(host, root.path());
        let api = Api::with_engine(db, EngineOptions { runtimes: Some(options), ..engine }).await;
        Self { api, docker, instance, root }
    }

    pub(crate) async fn declare_and_start(&self) {
        assert_eq!(self.api.put(PATH, spec()).await.status, 200);
        self.operate("start", json!({})).await;
    }

    fn containers(&self) -> Vec<String> {
        self.docker.labelled(&format!("windlass.instance={}", self.instance))
    }

    /// Requests an operation, waits until it has finished, and returns its log entry.
    pub(crate) async fn operate(&self, verb: &str, body: Value) -> Value {
        let response = self.api.post(&format!("{PATH}/{verb}?wait=30s"), body).await;
        self.ended(&response).await
    }

    /// Waits until the requested operation has finished: it may take longer than the request waits.
    async fn ended(&self, requested: &Response) -> Value {
        if requested.status == 200 {
            return requested.json();
        }
        assert_eq!(requested.status, 202, "{:?}", requested.body);
        let id = requested.json()["operation_id"].clone();
        let is_finished = |line: &Value| line["id"] == id && line["outcome"].is_string();
        eventually("the operation finishes", async || self.operations().await.into_iter().find(is_finished)).await
    }

    async fn runtime(&self) -> Value {
        self.runtime_when(|_| true).await
    }

    /// Waits until the runtime satisfies the condition. After a pause of the machine its node is lost until the next
    /// heartbeat, and the runtime shows only that.
    async fn runtime_when(&self, condition: impl Fn(&Value) -> bool) -> Value {
        self.api.get_when(PATH, |runtime| runtime["status"] != "unavailable" && condition(runtime)).await
    }

    pub(crate) async fn wait_for_health(&self, status: &str) -> Value {
        self.runtime_when(|runtime| runtime["health"]["status"] == status).await
    }

    pub(crate) async fn operations(&self) -> Vec<Value> {
        let page = self.api.get(&format!("{PATH}/operations?limit=100")).await.json();
        page["items"].as_array().unwrap().clone()
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        for id in self.containers() {
            self.docker.try_run(&["rm", "--force", "--volumes", &id]);
        }
    }
}

fn options(host: &str, root: &std::path::Path) -> RuntimeOptions {
    RuntimeOptions {
        probe_every: Duration::from_millis(300),
        inspect_every: Duration::from_secs(1),
        reconcile_every: Duration::from_secs(2),
        ..RuntimeOptions::new("here", host, root.join("state"))
    }
}

pub(crate) fn spec() -> Value {
    json!({
        "image": IMAGE, "command": ["sh", "-c", SERVE], "env": {"TOKEN": "s3cret"}, "ports": [{"container": 8080}],
        "volumes": [{"path": "/data"}], "memory_mb": 64, "cpus": 0.5, "probe": {"path": "/health", "port": 8080},
    })
}

fn outcome(operation: &Value) -> (&str, Option<&str>) {
    (operation["outcome"].as_str().unwrap_or("none"), operation["error_code"].as_str())
}

/// Requirement R3.
#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_is_declared_started_patched_stopped_and_removed() {
    on_both(async |db| {
        let driven = Driven::new(db).await;
        let put = driven.api.put(PATH, spec()).await;
        assert_eq!(put.status, 200, "{:?}", put.body);
        assert_eq!((&put.json()["status"], &put.json()["env"]["TOKEN"]), (&json!("removed"), &json!("********")));
        let started = driven.operate("start", json!({})).await;
        assert_eq!(outcome(&started), ("success", None), "{started}");
        assert_eq!((&started["kind"], &started["source"]), (&json!("start"), &json!("api")));
        let runtime = driven.wait_for_health("healthy").await;
        assert_eq!((&runtime["status"], &runtime["current_image"]), (&json!("running"), &json!(IMAGE)));
        assert!(runtime["endpoint"].as_str().unwrap().starts_with("http://127.0.0.1:"), "loopback is the default");
        assert_eq!(runtime["health"]["source"], "probe");

        // What Docker reports about the container.
        let id = runtime["container_id"].as_str().unwrap().to_owned();
        assert_eq!(driven.containers(), std::slice::from_ref(&id));
        let inspected: Value = serde_json::from_str(&driven.docker.run(&["inspect", &id])).unwrap();
        let host = &inspected[0]["HostConfig"];
        let settings = (&host["Privileged"], &host["CapDrop"], &host["SecurityOpt"], &host["Memory"]);
        let expected = (json!(false), json!(["ALL"]), json!(["no-new-privileges"]), json!(64 << 20));
        assert_eq!(settings, (&expected.0, &expected.1, &expected.2, &expected.3));
        let name = format!("/windlass-{}-2-model", driven.instance);
        assert_eq!((&inspected[0]["Name"], &inspected[0]["Config"]["Env"][0]), (&json!(name), &json!("TOKEN=s3cret")));

        assert_eq!(outcome(&driven.operate("start", json!({})).await), ("success", Some("replay_no_op")));
        let other = driven.operate("start", json!({"image": IMAGE_NEWER})).await;
        assert_eq!(outcome(&other), ("failure", Some("conflict")));
        for (image, code) in
            [(IMAGE_NEWER, "semver_patch_only"), ("windlass-test/busybox:latest", "image_ref_not_semver")]
        {
            let refused = driven.api.post(&format!("{PATH}/patch?wait=30s"), json!({"image": image})).await;
            refused.problem(422, code, Some("image"));
            assert_eq!(outcome(&driven.operations().await[0]), ("failure", Some(code)), "the rejection is logged");
        }
        assert_eq!(driven.runtime().await["container_id"], json!(id), "the container is unchanged");

        driven.docker.run(&["exec", &id, "touch", "/data/kept"]);
        let patched = driven.operate("patch", json!({"image": IMAGE_PATCHED})).await;
        assert_eq!(outcome(&patched), ("success", None), "{patched}");
        let runtime = driven.wait_for_health("healthy").await;
        assert_eq!((&runtime["current_image"], &runtime["image"]), (&json!(IMAGE_PATCHED), &json!(IMAGE_PATCHED)));
        let id = runtime["container_id"].as_str().unwrap().to_owned();
        assert_eq!(driven.docker.run(&["exec", &id, "ls", "/data"]), "kept", "a patch keeps the volumes");
        let restarted = driven.operate("restart", json!({})).await;
        let lines: Vec<Value> = driven.operations().await;
        let related = lines.iter().filter(|line| line["correlation_id"] == restarted["correlation_id"]);
        let mut kinds: Vec<&str> = related.map(|line| line["kind"].as_str().unwrap()).collect();
        kinds.sort_unstable();
        assert_eq!(kinds, ["restart", "start", "stop"]);

        assert_eq!(outcome(&driven.operate("stop", json!({})).await), ("success", None));
        assert_eq!(outcome(&driven.operate("stop", json!({})).await), ("success", Some("replay_no_op")));
        let runtime = driven.runtime().await;
        assert_eq!((&runtime["status"], &runtime["health"]), (&json!("stopped"), &Value::Null));
        assert!(runtime["stopped_at"].is_string() && runtime["endpoint"].is_null());
        let state_path = runtime["state_path"].as_str().unwrap().to_owned();
        let cleaned = driven.ended(&driven.api.call("DELETE", &format!("{PATH}/container?wait=30s")).await).await;
        assert_eq!((outcome(&cleaned), &cleaned["kind"]), (("success", None), &json!("cleanup_container")));
        assert_eq!(driven.containers(), Vec::<String>::new());
        assert_eq!(driven.runtime().await["status"], "removed");
        assert_eq!(driven.api.call("DELETE", PATH).await.status, 204);
        driven.api.get(PATH).await.problem(404, "not_found", None);
        assert!(std::path::Path::new(&state_path).join("data/kept").exists(), "the state path is never deleted");
        assert!(driven.operations().await.len() > 8, "the operation log is retained");
        let history = driven.api.get("/api/v1/subjects/runtime%2Fmodel/history?limit=500").await.json();
        let events: Vec<&str> =
            history["items"].as_array().unwrap().iter().map(|item| item["event"].as_str().unwrap()).collect();
        for event in ["declared", "start", "health_changed", "patch", "restart", "stop", "cleanup_container", "deleted"]
        {
            assert!(events.contains(&event), "{event} in {events:?}");
        }
    })
    .await;
}

/// Requirement R4.
#[tokio::test(flavor = "multi_thread")]
async fn each_unhealthy_state_and_recovery_is_reported() {
    on_both(async |db| {
        let driven = Driven::new(db).await;
        let trigger = json!({"name": "ill", "source": "runtime", "filter": {"name": "model", "health": "probe_failed"},
                             "target": {"job": {"queue": "alerts", "kind": "page"}}});
        assert_eq!(driven.api.post("/api/v1/triggers", trigger).await.status, 201);
        driven.api.put(PATH, spec()).await;
        driven.operate("start", json!({})).await;
        let runtime = driven.wait_for_health("healthy").await;
        let id = runtime["container_id"].as_str().unwrap().to_owned();
        let unhealthy = loop {
            driven.docker.run(&["exec", &id, "rm", "/www/health"]);
            let unhealthy = driven.wait_for_health("probe_failed").await;
            if unhealthy["health"]["details"].as_str().unwrap().contains(" answered ") {
                break unhealthy;
            }
            // A probe timed out on a busy machine, which is reported instead of a response.
            driven.docker.run(&["exec", &id, "touch", "/www/health"]);
            driven.wait_for_health("healthy").await;
        };
        assert_eq!((&unhealthy["status"], &unhealthy["health"]["source"]), (&json!("running"), &json!("probe")));
        assert!(unhealthy["health"]["details"].as_str().unwrap().contains("404"), "{unhealthy}");
        driven.docker.run(&["exec", &id, "touch", "/www/health"]);
        driven.wait_for_health("healthy").await;
        let worker = driven.api.worker("alerts").await;
        let alert = driven.api.next_job(&worker).await;
        assert_eq!(alert["payload"]["data"]["health"], "probe_failed", "the trigger fired");

        driven.docker.run(&["kill", &id]);
        let ended = driven.wait_for_health("exited").await;
        assert_eq!(ended["status"], "stopped");
        driven.operate("start", json!({})).await;
        driven.wait_for_health("healthy").await;
        let removed = driven.runtime().await["container_id"].as_str().unwrap().to_owned();
        driven.docker.run(&["rm", "--force", &removed]);
        let disposed = driven.runtime_when(|runtime| runtime["container_id"].is_null()).await;
        assert_eq!(disposed["health"]["status"], "container_disappeared");
        assert_eq!(disposed["status"], "removed");
        let lines = driven.operations().await;
        assert_eq!((&lines[0]["kind"], &lines[0]["source"]), (&json!("reconcile_dispose"), &json!("auto_reconcile")));
        assert!(lines[0]["source_ref"].as_str().unwrap().contains("no longer exists"), "the log states the reason");

        let mut greedy = spec();
        greedy["command"] = json!(["sh", "-c", "x=aaaaaaaaaaaaaaaa; while true; do x=$x$x; done"]);
        greedy["memory_mb"] = json!(16);
        greedy["probe"] = Value::Null;
        driven.api.put(PATH, greedy).await;
        driven.operate("start", json!({})).await;
        driven.wait_for_health("oom").await;
        driven.api.put(PATH, spec()).await;
        driven.operate("start", json!({})).await;
        driven.wait_for_health("healthy").await;
        driven.operate("stop", json!({})).await;
        driven.ended(&driven.api.call("DELETE", &format!("{PATH}/container?wait=30s")).await).await;
        let history = driven.api.get(&format!("{PATH}/health")).await.json();
        assert_eq!(history["status"], Value::Null, "a runtime that was stopped and removed has no health");
        let seen: Vec<&str> =
            history["items"].as_array().unwrap().iter().rev().map(|item| item["status"].as_str().unwrap()).collect();
        // The runtime without memory may have been healthy before.
        let mut rest = seen.iter();
        for expected in
            ["healthy", "probe_failed", "healthy", "exited", "healthy", "container_disappeared", "oom", "healthy"]
        {
            assert!(rest.any(|status| *status == expected), "{expected} in {seen:?}");
        }
        let disappeared = seen.iter().filter(|status| **status == "container_disappeared").count();
        assert_eq!(disappeared, 1, "only the removal outside of Windlass counts: {seen:?}");
        assert_eq!(driven.api.get("/metrics").await.status, 200);
    })
    .await;
}

/// Requirement R2.
#[tokio::test(flavor = "multi_thread")]
async fn an_operation_waits_for_an_unavailable_docker_engine() {
    on_both(async |db| {
        let docker = Docker::engine();
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("docker.sock");
        let driven = Driven::at(db, docker.clone(), &format!("unix://{}", socket.display())).await;
        driven.api.put(PATH, spec()).await;
        let first = driven.operate("start", json!({})).await;
        assert_eq!(outcome(&first), ("failure", Some("docker_unavailable")));
        let waiting = driven.runtime().await;
        assert_eq!((&waiting["in_flight"], &waiting["status"]), (&json!("start"), &json!("removed")));
        std::os::unix::fs::symlink(docker.socket(), &socket).unwrap();
        driven.wait_for_health("healthy").await;
        let lines = driven.operations().await;
        assert_eq!(outcome(&lines[0]), ("success", None));
        assert!(lines.len() >= 2 && lines.iter().all(|line| line["correlation_id"] == first["correlation_id"]));
        // Without the engine the state of the container is unknown. Only probes continue.
        std::fs::remove_file(&socket).unwrap();
        driven.api.get(&format!("{PATH}/logs")).await.problem(503, "docker_unavailable", None);
        // Real time: several inspections are due in these two seconds, and none may report a state.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let health = driven.api.get(&format!("{PATH}/health")).await.json();
        assert!(health["items"].as_array().unwrap().iter().all(|item| item["source"] == "probe"), "{health}");
        std::os::unix::fs::symlink(docker.socket(), &socket).unwrap();
        assert_eq!(outcome(&driven.operate("stop", json!({})).await), ("success", None));
    })
    .await;
}

/// Requirement R3.
#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_that_never_started_is_stopped_and_deleted_without_docker() {
    on_both(async |db| {
        let folder = tempfile::tempdir().unwrap();
        let nowhere = format!("unix://{}", folder.path().join("docker.sock").display());
        let driven = Driven::at(db, Docker::engine(), &nowhere).await;
        driven.api.put(PATH, spec()).await;
        assert_eq!(outcome(&driven.operate("start", json!({})).await), ("failure", Some("docker_unavailable")));
        assert_eq!(outcome(&driven.operate("stop", json!({})).await), ("success", Some("replay_no_op")));
        driven.runtime_when(|runtime| runtime["in_flight"].is_null()).await;
        assert_eq!(outcome(&driven.operate("start", json!({})).await), ("failure", Some("docker_unavailable")));
        let deleted = driven.ended(&driven.api.call("DELETE", &format!("{PATH}?wait=30s")).await).await;
        assert_eq!(outcome(&deleted), ("success", Some("replay_no_op")), "{deleted}");
        driven.api.get(PATH).await.problem(404, "not_found", None);
    })
    .await;
}

/// Requirement R2.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_start_reports_its_code_and_leaves_no_container() {
    let driven = Driven::new(Database::sqlite().await).await;
    let mut odd = spec();
    odd["command"] = json!(["/no/such/program"]);
    driven.api.put(PATH, odd).await;
    let failed = driven.operate("start", json!({})).await;
    assert_eq!(outcome(&failed), ("failure", Some("container_start_failed")), "{failed}");
    assert_eq!(driven.containers(), Vec::<String>::new());
    let mut missing = spec();
    missing["image"] = json!("127.0.0.1:1/nothing/there:1.0.0");
    driven.api.put(PATH, missing).await;
    let failed = driven.operate("start", json!({})).await;
    assert_eq!(outcome(&failed), ("failure", Some("image_pull_failed")), "{failed}");
    let root = driven.root.path().join("state/2/model");
    std::fs::remove_dir_all(&root).unwrap();
    std::fs::create_dir_all(&root).unwrap();
    std::os::unix::fs::symlink("/etc", root.join("data")).unwrap();
    driven.api.put(PATH, spec()).await;
    let failed = driven.operate("start", json!({})).await;
    assert_eq!(outcome(&failed), ("failure", Some("start_config_invalid")), "symbolic links are rejected");
    driven.api.post("/api/v1/runtimes/missing/start", json!({})).await.problem(404, "not_found", None);
}

struct DeleteRuntimes;

impl Operation for DeleteRuntimes {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        tx.batch("delete from runtimes").await
    }
}

async fn delete_runtimes(store: &Store) {
    store.write(DeleteRuntimes).await.unwrap();
}

/// Requirement R5.
#[tokio::test(flavor = "multi_thread")]
async fn own_containers_are_adopted_and_foreign_ones_are_untouched() {
    on_both(async |db| {
        let driven = Driven::new(db).await;
        let name = format!("windlass-{}-2-model", driven.instance);
        let foreign = ["create", "--name", &name, "--label", "windlass.instance=another", IMAGE, "sleep", "1000"];
        let foreign = driven.docker.run(&foreign);
        driven.api.put(PATH, spec()).await;
        let refused = driven.operate("start", json!({})).await;
        assert_eq!(outcome(&refused), ("failure", Some("conflict")), "{refused}");
        assert_eq!(driven.docker.run(&["inspect", "--format", "{{.State.Status}}", &foreign]), "created");
        driven.docker.run(&["rm", &foreign]);

        // Deleting the row simulates a server that was killed after it created the container and before it stored it.
        driven.operate("start", json!({})).await;
        let before = driven.wait_for_health("healthy").await;
        delete_runtimes(&driven.api.db.store).await;
        let adopted = async || {
            let response = driven.api.get(PATH).await;
            response.status == 200 && response.json()["container_id"] == before["container_id"]
        };
        wait_until("the container is adopted", adopted).await;
        assert_eq!(driven.operations().await[0]["kind"], "reconcile_adopt");
        driven.api.put(PATH, spec()).await;
        assert_eq!(outcome(&driven.operate("start", json!({})).await), ("success", Some("replay_no_op")));
        assert_eq!(driven.containers().len(), 1);
    })
    .await;
}

/// Requirement R5.
#[tokio::test(flavor = "multi_thread")]
async fn a_time_to_live_stops_a_runtime_and_a_desired_state_restarts_it() {
    let driven = Driven::new(Database::sqlite().await).await;
    let mut wanted = spec();
    wanted["desired"] = json!("running");
    driven.api.put(PATH, wanted).await;
    let first = driven.wait_for_health("healthy").await;
    driven.docker.run(&["kill", first["container_id"].as_str().unwrap()]);
    driven
        .runtime_when(|runtime| {
            runtime["health"]["status"] == "healthy" && runtime["started_at"] != first["started_at"]
        })
        .await;
    assert!(driven.operations().await.iter().any(|line| line["source"] == "auto_reconcile"));
    let mut brief = spec();
    brief["ttl_s"] = json!(1);
    driven.api.put(PATH, brief).await;
    driven.runtime_when(|runtime| runtime["status"] == "stopped").await;
    assert_eq!(driven.operations().await[0]["source"], "auto_ttl");
    // The container of a stopped runtime is removed after a month.
    driven.api.db.pass_ms(31 * 24 * 3_600 * 1_000).await;
    driven.runtime_when(|runtime| runtime["status"] == "removed").await;
    assert_eq!(driven.containers(), Vec::<String>::new());
}

/// Requirement R9.
#[tokio::test(flavor = "multi_thread")]
async fn runtime_logs_are_shown_and_followed() {
    let driven = Driven::new(Database::sqlite().await).await;
    let mut writer = spec();
    writer["command"] =
        json!(["sh", "-c", "trap 'exit 0' TERM; echo one; echo two; echo three >&2; sleep 1000 & wait"]);
    writer["probe"] = Value::Null;
    driven.api.put(PATH, writer).await;
    driven.api.get(&format!("{PATH}/logs")).await.problem(404, "not_found", None);
    driven.operate("start", json!({})).await;
    let logs = eventually("the log contains three lines", async || {
        let logs = driven.api.get(&format!("{PATH}/logs")).await;
        let text = String::from_utf8(logs.body.to_vec()).unwrap();
        ["one\n", "two\n", "three\n"].iter().all(|line| text.contains(line)).then_some(logs)
    })
    .await;
    assert_eq!(logs.header("content-type"), "text/plain; charset=utf-8");
    let tail = driven.api.get(&format!("{PATH}/logs?tail=1")).await;
    assert_eq!(tail.body.split(|b| *b == b'\n').count(), 2, "{:?}", tail.body);
    let follow = request("GET", &format!("{PATH}/logs?follow=true")).body(axum::body::Body::empty()).unwrap();
    let mut body = driven.api.raw(follow).await.into_body();
    let first = http_body_util::BodyExt::frame(&mut body).await.unwrap().unwrap();
    assert!(
        first.data_ref().is_some_and(|data| !data.is_empty()),
        "existing lines come first, and the response stays open"
    );
    for query in ["tail=-1", "tail=x", "follow=maybe", "lines=3"] {
        assert_eq!(driven.api.get(&format!("{PATH}/logs?{query}")).await.status, 400, "{query}");
    }
    // The engine's error is forwarded, whether the end of the container is recorded or not.
    let id = driven.runtime().await["container_id"].as_str().unwrap().to_owned();
    driven.docker.run(&["rm", "--force", &id]);
    driven.api.get(&format!("{PATH}/logs")).await.problem(404, "not_found", None);
}
