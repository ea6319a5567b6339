//! Runtimes with the real binary and a real Docker engine: SIGKILL at each step of a start, and the command line.

use std::time::Duration;

use client::wire::{PortSettings, ProbeSettings, RuntimeRequest};
use client::{Client, OperationResult, RuntimeOperation};
use serde_json::{Value, json};
use testkit::docker::{Docker, IMAGE, SERVE};

use crate::support::{DockerEngine, Fixture, Serve, eventually, free_port, on_postgres, on_sqlite, windlass};

fn request() -> RuntimeRequest {
    RuntimeRequest {
        image: IMAGE.into(),
        command: Some(vec!["sh".into(), "-c".into(), SERVE.into()]),
        ports: Some(vec![PortSettings { container: 8080, host: None, address: None }]),
        probe: Some(ProbeSettings { path: "/health".into(), port: 8080 }),
        ..RuntimeRequest::default()
    }
}

/// The containers of one runtime. Dropping it removes them.
struct Containers {
    docker: Docker,
    label: String,
}

impl Containers {
    fn of(name: &str) -> Self {
        Self { docker: Docker::engine(), label: format!("windlass.runtime={name}") }
    }

    fn all(&self) -> Vec<String> {
        self.docker.labelled(&self.label)
    }

    fn running(&self) -> usize {
        let filter = format!("label={}", self.label);
        self.docker.run(&["ps", "--quiet", "--filter", &filter]).lines().count()
    }
}

impl Drop for Containers {
    fn drop(&mut self) {
        for id in self.all() {
            self.docker.try_run(&["rm", "--force", "--volumes", &id]);
        }
    }
}

async fn operate(client: &Client, name: &str, verb: RuntimeOperation) -> String {
    match client.operate_runtime(name, verb, None, Duration::from_secs(60), "api").await.expect("the server responds") {
        OperationResult::Ended(operation) => operation.outcome.clone().unwrap_or_default(),
        OperationResult::Accepted(accepted) => {
            eventually("the operation finishes", async || {
                let lines = client.runtime_operations(name, None).await.expect("operations are listed").items;
                lines.into_iter().find(|line| line.id == accepted.operation_id)?.outcome
            })
            .await
        }
        OperationResult::Deleted => panic!("there is no runtime {name}"),
    }
}

async fn kill_during_start(fixture: Fixture) {
    let name = format!("killed-{}-{}", std::process::id(), fixture.is_postgres());
    let containers = Containers::of(&name);
    let port = free_port();
    let serve = || {
        Serve::on(&fixture).port(port).env("WINDLASS_DOCKER_HOST", &containers.docker.host).env("WINDLASS_NODE", "here")
    };
    let mut server = serve().start().await;
    server.client().set_runtime(&name, &request()).await.expect("the runtime is declared");
    for moment in ["requested", "created", "started"] {
        let client = server.client();
        let accepted = client.operate_runtime(&name, RuntimeOperation::Start, None, Duration::ZERO, "api").await;
        assert!(matches!(accepted.expect("the server responds"), OperationResult::Accepted(_)));
        eventually(moment, async || match moment {
            "created" => (!containers.all().is_empty()).then_some(()),
            "started" => (containers.running() > 0).then_some(()),
            _ => Some(()),
        })
        .await;
        server.program.kill().await;
        server = serve().start().await;
        let client = server.client();
        let runtime = eventually("the runtime is healthy", async || {
            let runtime = client.runtime(&name).await.expect("the runtime exists");
            let healthy = runtime.health.as_ref().is_some_and(|health| health.status == "healthy");
            (healthy && runtime.in_flight.is_none()).then_some(runtime)
        })
        .await;
        assert_eq!(containers.all(), [runtime.container_id.expect("the runtime has a container")], "{moment}");
        assert_eq!(operate(&client, &name, RuntimeOperation::CleanUp).await, "success");
        assert_eq!(containers.all(), Vec::<String>::new());
    }
    let log = server.client().runtime_operations(&name, None).await.expect("operations are listed").items;
    assert!(log.iter().all(|line| line.finished_at.is_some()), "every operation has finished: {log:?}");
    server.program.kill().await;
    fixture.verify().await;
}

/// Requirement R2.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_while_it_starts_a_runtime_leaves_one_container_on_sqlite() {
    on_sqlite(kill_during_start).await;
}

/// Requirement R2.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_while_it_starts_a_runtime_leaves_one_container_on_postgres() {
    on_postgres(kill_during_start).await;
}

/// Requirement R9.
#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_declares_starts_shows_and_deletes_a_runtime() {
    on_sqlite(async |fixture: Fixture| {
        let name = format!("shown-{}", std::process::id());
        let containers = Containers::of(&name);
        let serve = Serve::on(&fixture).env("WINDLASS_DOCKER_HOST", &containers.docker.host);
        let server = serve.env("WINDLASS_NODE", "here").start().await;
        let run = async |args: &[&str]| {
            let mut all = vec!["--url", &server.url, "runtime"];
            all.extend(args);
            let output = windlass(&all).await;
            (output.code, output.stdout, output.stderr)
        };
        let set = ["set", &name, "--image", IMAGE, "--port", "8080", "--env", "A=b", "--", "sh", "-c", SERVE];
        assert_eq!(run(&set).await.0, Some(0), "{:?}", run(&set).await);
        let (code, stdout, stderr) = run(&["start", &name]).await;
        assert_eq!((code, stdout.trim()), (Some(0), "start success"), "{stderr}");
        let (code, stdout, _) = run(&["start", &name]).await;
        assert_eq!((code, stdout.trim()), (Some(0), "start success (replay_no_op)"));
        let logs = eventually("the log is not empty", async || {
            let (_, stdout, _) = run(&["logs", &name]).await;
            (!stdout.is_empty()).then_some(stdout)
        })
        .await;
        assert_eq!(logs, "serving\n");
        let (_, listed, _) = run(&["list"]).await;
        assert!(
            listed.contains(&name) && listed.contains("running") && listed.contains("http://127.0.0.1:"),
            "{listed}"
        );
        let (_, shown, _) = run(&["--output", "json", "operations", &name]).await;
        assert!(shown.contains("\"source\":\"cli\"") || shown.contains("\"source\": \"cli\""), "{shown}");
        let (code, stdout, _) = run(&["patch", &name, "windlass-test/busybox:2.0.0"]).await;
        assert_eq!((code, stdout.as_str()), (Some(3), ""), "the patch is rejected");
        assert_eq!(run(&["stop", &name]).await.0, Some(0));
        assert_eq!(run(&["delete", &name]).await.0, Some(0));
        assert_eq!(run(&["show", &name]).await.0, Some(4));
        assert_eq!(containers.all(), Vec::<String>::new());
    })
    .await;
}

/// Requirement R3.
#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_distinguishes_a_retried_operation_from_a_failed_one() {
    on_sqlite(async |fixture: Fixture| {
        let serve = Serve::on(&fixture).env("WINDLASS_DOCKER_HOST", "unix:///no/such/docker.sock");
        let server = serve.env("WINDLASS_NODE", "here").start().await;
        let run = async |args: &[&str]| {
            let mut all = vec!["--url", &server.url, "runtime"];
            all.extend(args);
            let output = windlass(&all).await;
            (output.code, output.stdout.trim().to_owned())
        };
        assert_eq!(run(&["set", "away", "--image", IMAGE]).await.0, Some(0));
        let (code, text) = run(&["start", "away"]).await;
        assert_eq!(code, Some(6), "{text}");
        assert!(text.starts_with("start failed for now (docker_unavailable)"), "{text}");
        assert!(text.ends_with("it is retried automatically"), "{text}");
        assert_eq!(run(&["stop", "away"]).await, (Some(0), "stop success (replay_no_op)".into()));
        assert_eq!(run(&["delete", "away"]).await.0, Some(0));
        assert_eq!(run(&["show", "away"]).await.0, Some(4));
        assert_eq!(run(&["set", "unused", "--image", IMAGE]).await.0, Some(0));
        let (code, text) = run(&["--output", "json", "delete", "unused"]).await;
        assert_eq!(code, Some(0), "{text}");
        let deleted: Value = serde_json::from_str(&text).expect("stdout is JSON, even if nothing had to be stopped");
        assert!(deleted.is_object(), "{text}");
    })
    .await;
}

/// Requirement R7.
#[tokio::test(flavor = "multi_thread")]
async fn an_unnamed_pool_setting_is_unchanged_on_the_server() {
    on_sqlite(async |fixture: Fixture| {
        let serve = Serve::on(&fixture).env("WINDLASS_DOCKER_HOST", "unix:///no/such/docker.sock");
        let server = serve.env("WINDLASS_NODE", "here").start().await;
        let run = async |args: &[&str]| windlass(&[&["--output", "json", "--url", &server.url], args].concat()).await;
        assert_eq!(run(&["runtime", "set", "llama", "--image", IMAGE, "--port", "8080"]).await.code, Some(0));
        let empty = run(&["pool", "set", "gpu", "--slots", "1"]).await;
        assert_eq!(empty.code, Some(2), "a new pool needs members: {empty:?}");
        let set = ["pool", "set", "gpu", "--member", "llama=llama:preloaded", "--path", "/ask", "--idle-stop-s", "60"];
        assert_eq!(run(&set).await.code, Some(0));
        let changed = run(&["pool", "set", "gpu", "--at-once", "2", "--unset", "idle_stop_s"]).await;
        assert_eq!(changed.code, Some(0), "{changed:?}");
        let pool: Value = serde_json::from_str(&changed.stdout).expect("JSON");
        assert_eq!(pool["members"][0]["stay"], json!("preloaded"), "{pool}");
        assert_eq!((&pool["handler"]["path"], &pool["handler"]["at_once"]), (&json!("/ask"), &json!(2)), "{pool}");
        assert_eq!((&pool["slots"], &pool["idle_stop_s"]), (&json!(1), &json!(null)), "{pool}");
    })
    .await;
}

/// Requirement R4.
#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_recovers_after_a_restart_of_its_docker_engine() {
    on_sqlite(async |fixture: Fixture| {
        let engine = DockerEngine::start();
        let docker = engine.docker();
        let serve = Serve::on(&fixture).env("WINDLASS_DOCKER_HOST", &docker.host).env("WINDLASS_NODE", "here");
        let server = serve.start().await;
        let client = server.client();
        let request = RuntimeRequest { desired: Some("running".into()), ..request() };
        client.set_runtime("desired", &request).await.expect("the runtime is declared");
        let healthy = async || {
            let runtime = client.runtime("desired").await.expect("the runtime exists");
            let is_healthy = runtime.health.as_ref().is_some_and(|health| health.status == "healthy");
            (is_healthy && runtime.status == "running").then_some(runtime)
        };
        let before = eventually("the runtime is healthy", healthy).await;
        engine.stop();
        engine.restart();
        eventually("the runtime is healthy again", async || {
            healthy().await.filter(|after| after.started_at > before.started_at)
        })
        .await;
        assert_eq!(docker.labelled("windlass.runtime=desired").len(), 1, "only one container exists");
        let health = client.runtime_health("desired").await.expect("the server responds");
        let health = serde_json::to_string(&health).expect("a view is JSON");
        assert!(!health.contains("container_disappeared"), "{health}");
        drop(server);
        fixture.verify().await;
    })
    .await;
}
