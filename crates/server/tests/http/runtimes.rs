//! Runtimes over HTTP, on a real Docker engine (R1 to R6, R9).

use std::time::{Duration, Instant};

use engine::EngineOptions;
use engine::runtime::RuntimeOptions;
use serde_json::{Value, json};
use store::tx::{Operation, Tx};
use store::{Store, StoreError};
use tempfile::TempDir;
use testkit::docker::{Docker, IMAGE, IMAGE_NEWER, IMAGE_PATCHED, SERVE};
use testkit::{Database, on_both};

use crate::api::{Answer, Api, request};

pub(crate) const PATH: &str = "/api/v1/runtimes/model";

/// A server with an engine of its own to drive, quicker to look than in earnest.
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

    /// Asks for an operation and gives how it ended.
    pub(crate) async fn operate(&self, verb: &str, body: Value) -> Value {
        let answer = self.api.post(&format!("{PATH}/{verb}?wait=30s"), body).await;
        self.ended(&answer).await
    }

    /// How what was asked for ended: an engine may take longer than an answer waits.
    async fn ended(&self, asked: &Answer) -> Value {
        if asked.status == 200 {
            return asked.json();
        }
        assert_eq!(asked.status, 202, "{:?}", asked.body);
        let id = asked.json()["operation_id"].clone();
        let deadline = Instant::now() + crate::api::PATIENCE;
        loop {
            let lines = self.operations().await;
            if let Some(line) = lines.iter().find(|line| line["id"] == id && line["outcome"].is_string()) {
                return line.clone();
            }
            assert!(Instant::now() < deadline, "it ends: {lines:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn runtime(&self) -> Value {
        self.until("its node is there", |_| true).await
    }

    /// Waits until the runtime is as wanted. After a machine stood still its node is taken for lost until the next
    /// beat, and no more is told of the runtime than that.
    async fn until(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + crate::api::PATIENCE;
        loop {
            let runtime = self.api.get(PATH).await.json();
            if runtime["status"] != "unavailable" && wanted(&runtime) {
                return runtime;
            }
            assert!(Instant::now() < deadline, "{what}: {runtime}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) async fn until_health(&self, status: &str) -> Value {
        self.until(status, |runtime| runtime["health"]["status"] == status).await
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

fn told(operation: &Value) -> (&str, Option<&str>) {
    (operation["outcome"].as_str().unwrap_or("none"), operation["error_code"].as_str())
}

#[tokio::test(flavor = "multi_thread")]
async fn r3_a_runtime_is_declared_started_patched_stopped_and_removed() {
    on_both(async |db| {
        let driven = Driven::new(db).await;
        let put = driven.api.put(PATH, spec()).await;
        assert_eq!(put.status, 200, "{:?}", put.body);
        assert_eq!((&put.json()["status"], &put.json()["env"]["TOKEN"]), (&json!("removed"), &json!("********")));
        let started = driven.operate("start", json!({})).await;
        assert_eq!(told(&started), ("success", None), "{started}");
        assert_eq!((&started["kind"], &started["source"]), (&json!("start"), &json!("api")));
        let runtime = driven.until_health("healthy").await;
        assert_eq!((&runtime["status"], &runtime["current_image"]), (&json!("running"), &json!(IMAGE)));
        assert!(runtime["endpoint"].as_str().unwrap().starts_with("http://127.0.0.1:"), "on loopback unless said");
        assert_eq!(runtime["health"]["source"], "probe");

        // What Docker itself says of it.
        let id = runtime["container_id"].as_str().unwrap().to_owned();
        assert_eq!(driven.containers(), std::slice::from_ref(&id));
        let inspected: Value = serde_json::from_str(&driven.docker.run(&["inspect", &id])).unwrap();
        let host = &inspected[0]["HostConfig"];
        let told_of_host = (&host["Privileged"], &host["CapDrop"], &host["SecurityOpt"], &host["Memory"]);
        let expected = (json!(false), json!(["ALL"]), json!(["no-new-privileges"]), json!(64 << 20));
        assert_eq!(told_of_host, (&expected.0, &expected.1, &expected.2, &expected.3));
        let name = format!("/windlass-{}-2-model", driven.instance);
        assert_eq!((&inspected[0]["Name"], &inspected[0]["Config"]["Env"][0]), (&json!(name), &json!("TOKEN=s3cret")));

        assert_eq!(told(&driven.operate("start", json!({})).await), ("success", Some("replay_no_op")));
        let other = driven.operate("start", json!({"image": IMAGE_NEWER})).await;
        assert_eq!(told(&other), ("failure", Some("conflict")));
        for (image, code) in
            [(IMAGE_NEWER, "semver_patch_only"), ("windlass-test/busybox:latest", "image_ref_not_semver")]
        {
            let refused = driven.api.post(&format!("{PATH}/patch?wait=30s"), json!({"image": image})).await;
            refused.problem(422, code, Some("image"));
            assert_eq!(told(&driven.operations().await[0]), ("failure", Some(code)), "it is written down");
        }
        assert_eq!(driven.runtime().await["container_id"], json!(id), "nothing was touched");

        driven.docker.run(&["exec", &id, "touch", "/data/kept"]);
        let patched = driven.operate("patch", json!({"image": IMAGE_PATCHED})).await;
        assert_eq!(told(&patched), ("success", None), "{patched}");
        let runtime = driven.until_health("healthy").await;
        assert_eq!((&runtime["current_image"], &runtime["image"]), (&json!(IMAGE_PATCHED), &json!(IMAGE_PATCHED)));
        let id = runtime["container_id"].as_str().unwrap().to_owned();
        assert_eq!(driven.docker.run(&["exec", &id, "ls", "/data"]), "kept", "volumes outlive containers");
        let restarted = driven.operate("restart", json!({})).await;
        let together: Vec<Value> = driven.operations().await;
        let together = together.iter().filter(|line| line["correlation_id"] == restarted["correlation_id"]);
        let mut kinds: Vec<&str> = together.map(|line| line["kind"].as_str().unwrap()).collect();
        kinds.sort_unstable();
        assert_eq!(kinds, ["restart", "start", "stop"]);

        assert_eq!(told(&driven.operate("stop", json!({})).await), ("success", None));
        assert_eq!(told(&driven.operate("stop", json!({})).await), ("success", Some("replay_no_op")));
        let runtime = driven.runtime().await;
        assert_eq!((&runtime["status"], &runtime["health"]), (&json!("stopped"), &Value::Null));
        assert!(runtime["stopped_at"].is_string() && runtime["endpoint"].is_null());
        let state_path = runtime["state_path"].as_str().unwrap().to_owned();
        let cleaned = driven.ended(&driven.api.call("DELETE", &format!("{PATH}/container?wait=30s")).await).await;
        assert_eq!((told(&cleaned), &cleaned["kind"]), (("success", None), &json!("cleanup_container")));
        assert_eq!(driven.containers(), Vec::<String>::new());
        assert_eq!(driven.runtime().await["status"], "removed");
        assert_eq!(driven.api.call("DELETE", PATH).await.status, 204);
        driven.api.get(PATH).await.problem(404, "not_found", None);
        assert!(std::path::Path::new(&state_path).join("data/kept").exists(), "the state path is never deleted");
        assert!(driven.operations().await.len() > 8, "the log stays");
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

#[tokio::test(flavor = "multi_thread")]
async fn r4_every_way_to_fall_ill_is_told_and_so_is_recovery() {
    on_both(async |db| {
        let driven = Driven::new(db).await;
        let trigger = json!({"name": "ill", "source": "runtime", "filter": {"name": "model", "health": "probe_failed"},
                             "target": {"job": {"queue": "alerts", "kind": "page"}}});
        assert_eq!(driven.api.post("/api/v1/triggers", trigger).await.status, 201);
        driven.api.put(PATH, spec()).await;
        driven.operate("start", json!({})).await;
        let runtime = driven.until_health("healthy").await;
        let id = runtime["container_id"].as_str().unwrap().to_owned();
        let ill = loop {
            driven.docker.run(&["exec", &id, "rm", "/www/health"]);
            let ill = driven.until_health("probe_failed").await;
            if ill["health"]["details"].as_str().unwrap().contains(" answered ") {
                break ill;
            }
            // The machine was too slow for a probe, which is told in the place of an answer.
            driven.docker.run(&["exec", &id, "touch", "/www/health"]);
            driven.until_health("healthy").await;
        };
        assert_eq!((&ill["status"], &ill["health"]["source"]), (&json!("running"), &json!("probe")));
        assert!(ill["health"]["details"].as_str().unwrap().contains("404"), "{ill}");
        driven.docker.run(&["exec", &id, "touch", "/www/health"]);
        driven.until_health("healthy").await;
        let worker = driven.api.worker("alerts").await;
        let alert = driven.api.next_job(&worker).await;
        assert_eq!(alert["payload"]["data"]["health"], "probe_failed", "a trigger heard of it");

        driven.docker.run(&["kill", &id]);
        let ended = driven.until_health("exited").await;
        assert_eq!(ended["status"], "stopped");
        driven.operate("start", json!({})).await;
        driven.until_health("healthy").await;
        let gone = driven.runtime().await["container_id"].as_str().unwrap().to_owned();
        driven.docker.run(&["rm", "--force", &gone]);
        let disposed = driven.until("its record is disposed of", |runtime| runtime["container_id"].is_null()).await;
        assert_eq!(disposed["health"]["status"], "container_disappeared");
        assert_eq!(disposed["status"], "removed");
        let lines = driven.operations().await;
        assert_eq!((&lines[0]["kind"], &lines[0]["source"]), (&json!("reconcile_dispose"), &json!("auto_reconcile")));
        assert!(lines[0]["source_ref"].as_str().unwrap().contains("gone"), "with its reason");

        let mut greedy = spec();
        greedy["command"] = json!(["sh", "-c", "x=aaaaaaaaaaaaaaaa; while true; do x=$x$x; done"]);
        greedy["memory_mb"] = json!(16);
        greedy["probe"] = Value::Null;
        driven.api.put(PATH, greedy).await;
        driven.operate("start", json!({})).await;
        driven.until_health("oom").await;
        driven.api.put(PATH, spec()).await;
        driven.operate("start", json!({})).await;
        driven.until_health("healthy").await;
        driven.operate("stop", json!({})).await;
        driven.ended(&driven.api.call("DELETE", &format!("{PATH}/container?wait=30s")).await).await;
        let history = driven.api.get(&format!("{PATH}/health")).await.json();
        assert_eq!(history["status"], Value::Null, "what was stopped and removed by us is not ill");
        let seen: Vec<&str> =
            history["items"].as_array().unwrap().iter().rev().map(|item| item["status"].as_str().unwrap()).collect();
        // A greedy one may be seen running before it falls.
        let mut rest = seen.iter();
        for expected in
            ["healthy", "probe_failed", "healthy", "exited", "healthy", "container_disappeared", "oom", "healthy"]
        {
            assert!(rest.any(|status| *status == expected), "{expected} in {seen:?}");
        }
        let gone = seen.iter().filter(|status| **status == "container_disappeared").count();
        assert_eq!(gone, 1, "only what went behind our back: {seen:?}");
        assert_eq!(driven.api.get("/metrics").await.status, 200);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r2_an_engine_that_is_away_is_waited_for() {
    on_both(async |db| {
        let docker = Docker::engine();
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("docker.sock");
        let driven = Driven::at(db, docker.clone(), &format!("unix://{}", socket.display())).await;
        driven.api.put(PATH, spec()).await;
        let first = driven.operate("start", json!({})).await;
        assert_eq!(told(&first), ("failure", Some("docker_unavailable")));
        let waiting = driven.runtime().await;
        assert_eq!((&waiting["in_flight"], &waiting["status"]), (&json!("start"), &json!("removed")));
        std::os::unix::fs::symlink(docker.socket(), &socket).unwrap();
        driven.until_health("healthy").await;
        let lines = driven.operations().await;
        assert_eq!(told(&lines[0]), ("success", None));
        assert!(lines.len() >= 2 && lines.iter().all(|line| line["correlation_id"] == first["correlation_id"]));
        // Away again: nothing is said of the container, because nothing is known but whether it answers.
        std::fs::remove_file(&socket).unwrap();
        driven.api.get(&format!("{PATH}/logs")).await.problem(503, "docker_unavailable", None);
        tokio::time::sleep(Duration::from_secs(2)).await;
        let health = driven.api.get(&format!("{PATH}/health")).await.json();
        assert!(health["items"].as_array().unwrap().iter().all(|item| item["source"] == "probe"), "{health}");
        std::os::unix::fs::symlink(docker.socket(), &socket).unwrap();
        assert_eq!(told(&driven.operate("stop", json!({})).await), ("success", None));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r3_what_was_never_started_is_stopped_and_deleted_without_an_engine() {
    on_both(async |db| {
        let folder = tempfile::tempdir().unwrap();
        let nowhere = format!("unix://{}", folder.path().join("docker.sock").display());
        let driven = Driven::at(db, Docker::engine(), &nowhere).await;
        driven.api.put(PATH, spec()).await;
        assert_eq!(told(&driven.operate("start", json!({})).await), ("failure", Some("docker_unavailable")));
        assert_eq!(told(&driven.operate("stop", json!({})).await), ("success", Some("replay_no_op")));
        driven.until("the start gives up", |runtime| runtime["in_flight"].is_null()).await;
        assert_eq!(told(&driven.operate("start", json!({})).await), ("failure", Some("docker_unavailable")));
        let deleted = driven.ended(&driven.api.call("DELETE", &format!("{PATH}?wait=30s")).await).await;
        assert_eq!(told(&deleted), ("success", Some("replay_no_op")), "{deleted}");
        driven.api.get(PATH).await.problem(404, "not_found", None);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r2_what_cannot_be_started_says_why_and_leaves_nothing_behind() {
    let driven = Driven::new(Database::sqlite().await).await;
    let mut odd = spec();
    odd["command"] = json!(["/no/such/program"]);
    driven.api.put(PATH, odd).await;
    let failed = driven.operate("start", json!({})).await;
    assert_eq!(told(&failed), ("failure", Some("container_start_failed")), "{failed}");
    assert_eq!(driven.containers(), Vec::<String>::new());
    let mut missing = spec();
    missing["image"] = json!("127.0.0.1:1/nothing/there:1.0.0");
    driven.api.put(PATH, missing).await;
    let failed = driven.operate("start", json!({})).await;
    assert_eq!(told(&failed), ("failure", Some("image_pull_failed")), "{failed}");
    let root = driven.root.path().join("state/2/model");
    std::fs::remove_dir_all(&root).unwrap();
    std::fs::create_dir_all(&root).unwrap();
    std::os::unix::fs::symlink("/etc", root.join("data")).unwrap();
    driven.api.put(PATH, spec()).await;
    let failed = driven.operate("start", json!({})).await;
    assert_eq!(told(&failed), ("failure", Some("start_config_invalid")), "a link leads nowhere");
    driven.api.post("/api/v1/runtimes/nobody/start", json!({})).await.problem(404, "not_found", None);
}

struct Forget;

impl Operation for Forget {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        tx.batch("delete from runtimes").await
    }
}

async fn forget(store: &Store) {
    store.write(Forget).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn r5_our_own_containers_are_adopted_and_those_of_others_left_alone() {
    on_both(async |db| {
        let driven = Driven::new(db).await;
        let name = format!("windlass-{}-2-model", driven.instance);
        let foreign = ["create", "--name", &name, "--label", "windlass.instance=another", IMAGE, "sleep", "1000"];
        let foreign = driven.docker.run(&foreign);
        driven.api.put(PATH, spec()).await;
        let refused = driven.operate("start", json!({})).await;
        assert_eq!(told(&refused), ("failure", Some("conflict")), "{refused}");
        assert_eq!(driven.docker.run(&["inspect", "--format", "{{.State.Status}}", &foreign]), "created");
        driven.docker.run(&["rm", &foreign]);

        // As a server leaves it that was killed after it had made the container, and before it wrote that down.
        driven.operate("start", json!({})).await;
        let before = driven.until_health("healthy").await;
        forget(&driven.api.db.store).await;
        let adopted = async || {
            let answer = driven.api.get(PATH).await;
            answer.status == 200 && answer.json()["container_id"] == before["container_id"]
        };
        let deadline = Instant::now() + crate::api::PATIENCE;
        while !adopted().await {
            assert!(Instant::now() < deadline, "the container is adopted");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(driven.operations().await[0]["kind"], "reconcile_adopt");
        driven.api.put(PATH, spec()).await;
        assert_eq!(told(&driven.operate("start", json!({})).await), ("success", Some("replay_no_op")));
        assert_eq!(driven.containers().len(), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r5_a_time_to_live_stops_and_a_desired_state_holds() {
    let driven = Driven::new(Database::sqlite().await).await;
    let mut wanted = spec();
    wanted["desired"] = json!("running");
    driven.api.put(PATH, wanted).await;
    let first = driven.until_health("healthy").await;
    driven.docker.run(&["kill", first["container_id"].as_str().unwrap()]);
    driven
        .until("it is started again", |runtime| {
            runtime["health"]["status"] == "healthy" && runtime["started_at"] != first["started_at"]
        })
        .await;
    assert!(driven.operations().await.iter().any(|line| line["source"] == "auto_reconcile"));
    let mut brief = spec();
    brief["ttl_s"] = json!(1);
    driven.api.put(PATH, brief).await;
    driven.until("its time is up", |runtime| runtime["status"] == "stopped").await;
    assert_eq!(driven.operations().await[0]["source"], "auto_ttl");
    // A month later its container is removed; deleting the runtime works from any state.
    driven.api.db.pass_ms(31 * 24 * 3_600 * 1_000).await;
    driven.until("it is cleaned up", |runtime| runtime["status"] == "removed").await;
    assert_eq!(driven.containers(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn r9_logs_are_shown_and_followed() {
    let driven = Driven::new(Database::sqlite().await).await;
    let mut talking = spec();
    talking["command"] =
        json!(["sh", "-c", "trap 'exit 0' TERM; echo one; echo two; echo three >&2; sleep 1000 & wait"]);
    talking["probe"] = Value::Null;
    driven.api.put(PATH, talking).await;
    driven.api.get(&format!("{PATH}/logs")).await.problem(404, "not_found", None);
    driven.operate("start", json!({})).await;
    let deadline = Instant::now() + crate::api::PATIENCE;
    loop {
        let logs = driven.api.get(&format!("{PATH}/logs")).await;
        let text = String::from_utf8(logs.body.to_vec()).unwrap();
        if ["one\n", "two\n", "three\n"].iter().all(|line| text.contains(line)) {
            assert_eq!(logs.header("content-type"), "text/plain; charset=utf-8");
            break;
        }
        assert!(Instant::now() < deadline, "{text}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let tail = driven.api.get(&format!("{PATH}/logs?tail=1")).await;
    assert_eq!(tail.body.split(|b| *b == b'\n').count(), 2, "{:?}", tail.body);
    let follow = request("GET", &format!("{PATH}/logs?follow=true")).body(axum::body::Body::empty()).unwrap();
    let mut body = driven.api.raw(follow).await.into_body();
    let first = http_body_util::BodyExt::frame(&mut body).await.unwrap().unwrap();
    assert!(
        first.data_ref().is_some_and(|data| !data.is_empty()),
        "what was written comes first, and the answer stays open"
    );
    for query in ["tail=-1", "tail=x", "follow=maybe", "lines=3"] {
        assert_eq!(driven.api.get(&format!("{PATH}/logs?{query}")).await.status, 400, "{query}");
    }
    // The engine's refusal is the answer, whether its end is known already or not.
    let id = driven.runtime().await["container_id"].as_str().unwrap().to_owned();
    driven.docker.run(&["rm", "--force", &id]);
    driven.api.get(&format!("{PATH}/logs")).await.problem(404, "not_found", None);
}
