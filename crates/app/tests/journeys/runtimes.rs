//! Runtimes with the real binary on a real engine: kill -9 at each step of a start, and the command line (R2, R5, R9).

use std::time::Duration;

use client::wire::{PortSettings, ProbeSettings, RuntimeRequest};
use client::{Client, Operated, RuntimeVerb};
use serde_json::{Value, json};
use testkit::docker::{Docker, IMAGE, SERVE};

use crate::support::{OwnEngine, Place, Serve, free_port, on_postgres, on_sqlite, until, windlass};

fn request() -> RuntimeRequest {
    RuntimeRequest {
        image: IMAGE.into(),
        command: Some(vec!["sh".into(), "-c".into(), SERVE.into()]),
        ports: Some(vec![PortSettings { container: 8080, host: None, address: None }]),
        probe: Some(ProbeSettings { path: "/health".into(), port: 8080 }),
        ..RuntimeRequest::default()
    }
}

/// Containers of one runtime, gone when the test is.
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

async fn operate(client: &Client, name: &str, verb: RuntimeVerb) -> String {
    match client.operate_runtime(name, verb, None, Duration::from_secs(60), "api").await.expect("is answered") {
        Operated::Ended(operation) => operation.outcome.clone().unwrap_or_default(),
        Operated::Accepted(accepted) => {
            until("the operation ends", async || {
                let lines = client.runtime_operations(name, None).await.expect("is told").items;
                lines.into_iter().find(|line| line.id == accepted.operation_id)?.outcome
            })
            .await
        }
        Operated::Gone => panic!("there is no runtime {name}"),
    }
}

async fn killed_while_it_starts(place: Place) {
    let name = format!("killed-{}-{}", std::process::id(), place.is_postgres());
    let containers = Containers::of(&name);
    let port = free_port();
    let serve = || {
        Serve::on(&place).port(port).env("WINDLASS_DOCKER_HOST", &containers.docker.host).env("WINDLASS_NODE", "here")
    };
    let mut server = serve().start().await;
    server.client().set_runtime(&name, &request()).await.expect("is declared");
    for moment in ["asked for", "made", "started"] {
        let client = server.client();
        let asked = client.operate_runtime(&name, RuntimeVerb::Start, None, Duration::ZERO, "api").await;
        assert!(matches!(asked.expect("is accepted"), Operated::Accepted(_)));
        until(moment, async || match moment {
            "made" => (!containers.all().is_empty()).then_some(()),
            "started" => (containers.running() > 0).then_some(()),
            _ => Some(()),
        })
        .await;
        server.program.kill().await;
        server = serve().start().await;
        let client = server.client();
        let runtime = until("it is healthy after all", async || {
            let runtime = client.runtime(&name).await.expect("is there");
            let healthy = runtime.health.as_ref().is_some_and(|health| health.status == "healthy");
            (healthy && runtime.in_flight.is_none()).then_some(runtime)
        })
        .await;
        assert_eq!(containers.all(), [runtime.container_id.expect("has a container")], "{moment}: one, and no other");
        assert_eq!(operate(&client, &name, RuntimeVerb::CleanUp).await, "success");
        assert_eq!(containers.all(), Vec::<String>::new());
    }
    let log = server.client().runtime_operations(&name, None).await.expect("is told").items;
    assert!(log.iter().all(|line| line.finished_at.is_some()), "nothing is left in flight: {log:?}");
    server.program.kill().await;
    place.verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r2_a_server_killed_while_it_starts_a_runtime_leaves_one_container_on_sqlite() {
    on_sqlite(killed_while_it_starts).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r2_a_server_killed_while_it_starts_a_runtime_leaves_one_container_on_postgres() {
    on_postgres(killed_while_it_starts).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r9_the_command_line_declares_starts_shows_and_deletes() {
    on_sqlite(async |place: Place| {
        let name = format!("shown-{}", std::process::id());
        let containers = Containers::of(&name);
        let serve = Serve::on(&place).env("WINDLASS_DOCKER_HOST", &containers.docker.host);
        let server = serve.env("WINDLASS_NODE", "here").start().await;
        let run = async |args: &[&str]| {
            let mut all = vec!["--url", &server.url, "runtime"];
            all.extend(args);
            let done = windlass(&all).await;
            (done.code, done.stdout, done.stderr)
        };
        let set = ["set", &name, "--image", IMAGE, "--port", "8080", "--env", "A=b", "--", "sh", "-c", SERVE];
        assert_eq!(run(&set).await.0, Some(0), "{:?}", run(&set).await);
        let (code, stdout, stderr) = run(&["start", &name]).await;
        assert_eq!((code, stdout.trim()), (Some(0), "start success"), "{stderr}");
        let (code, stdout, _) = run(&["start", &name]).await;
        assert_eq!((code, stdout.trim()), (Some(0), "start success (replay_no_op)"));
        let logs = until("it has written something", async || {
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
        assert_eq!((code, stdout.as_str()), (Some(3), ""), "refused");
        assert_eq!(run(&["stop", &name]).await.0, Some(0));
        assert_eq!(run(&["delete", &name]).await.0, Some(0));
        assert_eq!(run(&["show", &name]).await.0, Some(4));
        assert_eq!(containers.all(), Vec::<String>::new());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r3_the_command_line_tells_what_is_tried_again_from_what_failed() {
    on_sqlite(async |place: Place| {
        let serve = Serve::on(&place).env("WINDLASS_DOCKER_HOST", "unix:///no/such/docker.sock");
        let server = serve.env("WINDLASS_NODE", "here").start().await;
        let run = async |args: &[&str]| {
            let mut all = vec!["--url", &server.url, "runtime"];
            all.extend(args);
            let done = windlass(&all).await;
            (done.code, done.stdout.trim().to_owned())
        };
        assert_eq!(run(&["set", "away", "--image", IMAGE]).await.0, Some(0));
        let (code, told) = run(&["start", "away"]).await;
        assert_eq!(code, Some(6), "{told}");
        assert!(told.starts_with("start is not done yet (docker_unavailable)"), "{told}");
        assert!(told.ends_with("it is tried again by itself"), "{told}");
        assert_eq!(run(&["stop", "away"]).await, (Some(0), "stop success (replay_no_op)".into()));
        assert_eq!(run(&["delete", "away"]).await.0, Some(0));
        assert_eq!(run(&["show", "away"]).await.0, Some(4));
        assert_eq!(run(&["set", "unused", "--image", IMAGE]).await.0, Some(0));
        let (code, told) = run(&["--output", "json", "delete", "unused"]).await;
        assert_eq!(code, Some(0), "{told}");
        let told: Value = serde_json::from_str(&told).expect("JSON, whatever there was to do");
        assert!(told.is_object(), "{told}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r7_what_is_not_named_of_a_pool_stays() {
    on_sqlite(async |place: Place| {
        let serve = Serve::on(&place).env("WINDLASS_DOCKER_HOST", "unix:///no/such/docker.sock");
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

#[tokio::test(flavor = "multi_thread")]
async fn r4_an_engine_stopped_and_started_again_under_a_runtime_brings_it_back_by_itself() {
    on_sqlite(async |place: Place| {
        let engine = OwnEngine::start();
        let docker = engine.docker();
        let serve = Serve::on(&place).env("WINDLASS_DOCKER_HOST", &docker.host).env("WINDLASS_NODE", "here");
        let server = serve.start().await;
        let client = server.client();
        let kept = RuntimeRequest { desired: Some("running".into()), ..request() };
        client.set_runtime("kept", &kept).await.expect("is declared");
        let well = async || {
            let runtime = client.runtime("kept").await.expect("is there");
            let healthy = runtime.health.as_ref().is_some_and(|health| health.status == "healthy");
            (healthy && runtime.status == "running").then_some(runtime)
        };
        let before = until("it is healthy", well).await;
        engine.end();
        engine.start_again();
        until("it is healthy again", async || well().await.filter(|after| after.started_at > before.started_at)).await;
        assert_eq!(docker.labelled("windlass.runtime=kept").len(), 1, "one container, and no other");
        let told = client.runtime_health("kept").await.expect("is told");
        let told = serde_json::to_string(&told).expect("is JSON");
        assert!(!told.contains("container_disappeared"), "{told}");
        drop(server);
        place.verify().await;
    })
    .await;
}
