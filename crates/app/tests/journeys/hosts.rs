//! Several machines on one database, each with its own Docker engine.

use std::collections::BTreeMap;
use std::time::Duration;

use client::wire::{OperationView, PlacementSettings, PortSettings, ProbeSettings, RuntimeRequest, RuntimeView};
use client::{Client, OperationResult, RuntimeOperation};
use testkit::docker::{Docker, IMAGE, SERVE};

use crate::support::{
    DockerEngine, Fixture, Program, Serve, Server, eventually, is_transient, on_postgres, retry_while_unavailable,
    windlass,
};

/// Seconds of silence of another node before movable runtimes are moved.
const SHORT_MOVE_AFTER_S: &str = "20";
const LONG_MOVE_AFTER_S: &str = "3600";

fn request(labels: &[(&str, &str)]) -> RuntimeRequest {
    let labels: BTreeMap<String, String> =
        labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    RuntimeRequest {
        image: IMAGE.into(),
        command: Some(vec!["sh".into(), "-c".into(), SERVE.into()]),
        ports: Some(vec![PortSettings { container: 8080, host: None, address: None }]),
        probe: Some(ProbeSettings { path: "/health".into(), port: 8080 }),
        placement: Some(PlacementSettings { labels }),
        ..RuntimeRequest::default()
    }
}

/// A machine: its node name, labels and Docker engine.
struct Machine {
    name: &'static str,
    labels: &'static str,
    docker: Docker,
    _engine: DockerEngine,
}

impl Machine {
    fn new(name: &'static str, labels: &'static str) -> Self {
        let engine = DockerEngine::start();
        Self { name, labels, docker: engine.docker(), _engine: engine }
    }

    async fn serve(&self, fixture: &Fixture, move_after_s: &str) -> Server {
        let serve = Serve::on(fixture).env("WINDLASS_DOCKER_HOST", &self.docker.host).env("WINDLASS_NODE", self.name);
        serve.env("WINDLASS_ENGINE_LABEL", self.labels).env("WINDLASS_MOVE_AFTER_S", move_after_s).start().await
    }

    /// Starts an agent: a node without an API.
    async fn agent(&self, fixture: &Fixture) -> Program {
        let data = fixture.path("data").display().to_string();
        let args = ["agent", "--database", &fixture.url, "--data-dir", &data, "--docker-host", &self.docker.host];
        let args = args.into_iter().chain(["--node", self.name, "--engine-label", self.labels]);
        let program = Program::windlass(fixture, args);
        eventually("the agent drives its engine", async || program.stdout().contains("drives").then_some(())).await;
        program
    }

    fn containers(&self, runtime: &str) -> Vec<String> {
        self.docker.labelled(&format!("windlass.runtime={runtime}"))
    }
}

/// Waits until the runtime is healthy on this node.
async fn healthy_on(client: &Client, name: &str, node: &str) -> RuntimeView {
    eventually(&format!("{name} is healthy on {node}"), async || {
        let runtime = client.runtime(name).await.expect("the runtime exists");
        let healthy = runtime.health.as_ref().is_some_and(|health| health.status == "healthy");
        let there = runtime.node.as_deref() == Some(node) && runtime.status == "running";
        (healthy && there && runtime.in_flight.is_none()).then_some(runtime)
    })
    .await
}

/// Requests an operation, waits until it has finished, and returns its log entry.
async fn operate(client: &Client, name: &str, verb: RuntimeOperation) -> OperationView {
    let result = client.operate_runtime(name, verb, None, Duration::ZERO, "api").await.expect("the server responds");
    let OperationResult::Accepted(accepted) = result else { panic!("not accepted: {result:?}") };
    eventually(&format!("{verb:?} of {name} finishes"), async || {
        let log = client.runtime_operations(name, None).await.expect("operations are listed").items;
        log.into_iter().find(|line| line.id == accepted.operation_id && line.finished_at.is_some())
    })
    .await
}

/// Requirement R1.
#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_waits_for_a_node_with_its_label_and_starts_there() {
    on_postgres(async |fixture: Fixture| {
        let (near, far) = (Machine::new("near", "zone=a"), Machine::new("far", "gpu=a100,zone=b"));
        let here = near.serve(&fixture, SHORT_MOVE_AFTER_S).await;
        let client = here.client();
        client.set_runtime("model", &request(&[("gpu", "a100")])).await.expect("the runtime is declared");
        let line = operate(&client, "model", RuntimeOperation::Start).await;
        assert_eq!(line.error_code.as_deref(), Some("service_unavailable"));
        assert_eq!(line.error_message.as_deref(), Some("no node has gpu=a100"));
        let mut there = far.agent(&fixture).await;
        let runtime = healthy_on(&client, "model", "far").await;
        assert_eq!(far.containers("model"), [runtime.container_id.expect("the runtime has a container")]);
        assert_eq!(near.containers("model"), Vec::<String>::new());
        // An operation requested on one node runs on the node of the container.
        let stopped = operate(&client, "model", RuntimeOperation::CleanUp).await;
        assert_eq!(stopped.outcome.as_deref(), Some("success"), "{stopped:?}");
        assert_eq!(far.containers("model"), Vec::<String>::new());
        let nodes = eventually("both nodes send heartbeats", async || {
            let nodes = client.nodes().await.expect("nodes are listed").items;
            nodes.iter().all(|node| !node.is_lost).then_some(nodes)
        })
        .await;
        let slots: Vec<_> = nodes.iter().map(|node| (node.name.as_str(), node.slots_taken)).collect();
        assert_eq!(slots, [("far", 0), ("near", 0)]);
        assert_eq!(nodes[0].labels.get("gpu").map(String::as_str), Some("a100"));
        assert_eq!(there.terminate().await, Some(0), "SIGTERM stops an agent");
        fixture.verify().await;
    })
    .await;
}

/// Requirement R5.
#[tokio::test(flavor = "multi_thread")]
async fn runtimes_of_a_lost_node_wait_or_move_and_orphan_containers_are_removed() {
    on_postgres(async |fixture: Fixture| {
        let (near, far) = (Machine::new("near", "zone=a"), Machine::new("far", "zone=b"));
        let mut there = far.serve(&fixture, LONG_MOVE_AFTER_S).await;
        let client = there.client();
        let movable = RuntimeRequest { movable: Some(true), ..request(&[]) };
        for (name, request) in [("stays", &request(&[("zone", "b")])), ("goes", &movable)] {
            client.set_runtime(name, request).await.expect("the runtime is declared");
            client
                .operate_runtime(name, RuntimeOperation::Start, None, Duration::ZERO, "api")
                .await
                .expect("the operation is accepted");
        }
        let stays = healthy_on(&client, "stays", "far").await;
        let orphan = healthy_on(&client, "goes", "far").await.container_id.expect("the runtime has a container");
        // One node stops before the other starts, so that no runtime moves away from a node that is merely slow.
        there.program.kill().await;
        let here = near.serve(&fixture, SHORT_MOVE_AFTER_S).await;
        let client = here.client();

        let unavailable = eventually("the node is lost", async || {
            let runtime = client.runtime("stays").await.expect("the runtime exists");
            (runtime.status == "unavailable").then_some(runtime)
        })
        .await;
        let notice = unavailable.notice.expect("the runtime has a notice");
        assert!(notice.contains("node far has not reported for"), "{notice}");
        assert!(notice.contains("windlass runtime move stays"), "{notice}");
        // An operation requested meanwhile waits, and its signal names the node.
        let requested = client.operate_runtime("stays", RuntimeOperation::Restart, None, Duration::ZERO, "api").await;
        let OperationResult::Accepted(waiting) = requested.expect("the operation is accepted") else {
            panic!("no node can run the operation")
        };
        eventually("the signal names the node", async || {
            let signal =
                client.signal(waiting.job_id).await.expect("the server responds").expect("the job has a signal");
            signal.summary.contains("The operation's node far has been silent").then_some(())
        })
        .await;

        let moved = healthy_on(&client, "goes", "near").await;
        assert_eq!(near.containers("goes"), [moved.container_id.clone().expect("the runtime has a container")]);
        let log = client.runtime_operations("goes", None).await.expect("operations are listed").items;
        let start = log.iter().find(|line| line.source == "auto_reconcile").expect("an operation moved the runtime");
        let why = start.source_ref.clone().unwrap_or_default();
        assert!(why.starts_with("moved from far to near: far has been silent for"), "{why}");
        assert_eq!(far.containers("goes"), std::slice::from_ref(&orphan), "the stopped node removed no container");

        // The node returns. The unmoved runtime is restarted once, as requested. The moved runtime's container is
        // removed.
        let _there = far.serve(&fixture, LONG_MOVE_AFTER_S).await;
        let back = eventually("the runtime is restarted", async || {
            let runtime = client.runtime("stays").await.expect("the runtime exists");
            (runtime.status == "running" && runtime.in_flight.is_none() && runtime.started_at > stays.started_at)
                .then_some(runtime)
        })
        .await;
        assert_eq!(back.notice, None);
        assert_eq!(far.containers("stays"), [back.container_id.expect("the runtime has a container")]);
        eventually("the orphan is removed", async || far.containers("goes").is_empty().then_some(())).await;
        let disposed = eventually("the removal is logged", async || {
            let log = client.runtime_operations("goes", None).await.expect("operations are listed").items;
            log.into_iter().find(|line| line.kind == "reconcile_dispose")
        })
        .await;
        assert_eq!(disposed.container_id.as_deref(), Some(orphan.as_str()));
        assert_eq!(disposed.source_ref.as_deref(), Some("the runtime was moved to near"));
        let goes = client.runtime("goes").await.expect("the runtime exists");
        assert_eq!((goes.node.as_deref(), goes.container_id), (Some("near"), moved.container_id));
        fixture.verify().await;
    })
    .await;
}

/// Writes three lines, and a fourth on SIGUSR1.
const WRITE_LINES: &str = "trap 'exit 0' TERM; trap 'echo four' USR1; echo one; echo two; echo three; \
                    while :; do sleep 1000 & wait; done";

/// Starts a runtime that writes lines on the machine `far`, and returns its container.
async fn start_writer(client: &Client) -> String {
    let command = Some(vec!["sh".into(), "-c".into(), WRITE_LINES.into()]);
    let writer = RuntimeRequest { command, ports: None, probe: None, ..request(&[("zone", "b")]) };
    client.set_runtime("model", &writer).await.expect("the runtime is declared");
    let started = client.operate_runtime("model", RuntimeOperation::Start, None, Duration::ZERO, "api").await;
    started.expect("the operation is accepted");
    healthy_on(client, "model", "far").await.container_id.expect("the runtime has a container")
}

/// Follows the runtime's log from its third line on. Tolerates a slow agent.
async fn follow(client: &Client) -> reqwest::Response {
    eventually("the log contains three lines", async || {
        let logs = retry_while_unavailable(|| client.runtime_logs("model", None)).await;
        logs.text().await.expect("the log is complete").contains("three\n").then_some(())
    })
    .await;
    let mut followed = retry_while_unavailable(|| client.follow_runtime_logs("model", Some(1))).await;
    assert_next(&mut followed, "three\n").await;
    followed
}

/// Asserts that this line is next in the followed log.
async fn assert_next(followed: &mut reqwest::Response, line: &str) {
    let mut received = String::new();
    while received.len() < line.len() {
        let chunk = followed.chunk().await.expect("the connection stays open").expect("the log does not end");
        received.push_str(&String::from_utf8_lossy(&chunk));
    }
    assert_eq!(received, line);
}

/// Requirement R9.
#[tokio::test(flavor = "multi_thread")]
async fn logs_of_a_runtime_on_another_node_are_tailed_and_followed() {
    on_postgres(async |fixture: Fixture| {
        let (near, far) = (Machine::new("near", "zone=a"), Machine::new("far", "zone=b"));
        let here = near.serve(&fixture, LONG_MOVE_AFTER_S).await;
        let _there = far.agent(&fixture).await;
        let client = here.client();
        let container = start_writer(&client).await;
        let mut followed = follow(&client).await;
        let tail = retry_while_unavailable(|| client.runtime_logs("model", Some(2))).await;
        assert_eq!(tail.text().await.expect("the log is complete"), "two\nthree\n");
        far.docker.run(&["kill", "--signal", "USR1", &container]);
        assert_next(&mut followed, "four\n").await;
        // A client that disconnects leaves no row.
        let readings = async || fixture.count("select count(*) from windlass.log_readings").await;
        assert_eq!(readings().await, 1);
        drop(followed);
        eventually("the reading is deleted", async || (readings().await == 0).then_some(())).await;
        // An error of the engine on the other node is forwarded unchanged.
        far.docker.run(&["rm", "--force", &container]);
        let refused = eventually("the error is returned", async || {
            client.runtime_logs("model", None).await.err().filter(|error| !is_transient(error))
        })
        .await;
        assert_eq!((refused.status(), refused.code()), (Some(404), Some("not_found")), "{refused}");
        fixture.verify().await;
    })
    .await;
}

/// Requirement R9.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_ends_when_its_node_stops_and_the_error_names_the_node() {
    on_postgres(async |fixture: Fixture| {
        let (near, far) = (Machine::new("near", "zone=a"), Machine::new("far", "zone=b"));
        let here = near.serve(&fixture, LONG_MOVE_AFTER_S).await;
        let mut there = far.agent(&fixture).await;
        let client = here.client();
        start_writer(&client).await;
        // An agent that stops gracefully ends the log.
        let mut followed = follow(&client).await;
        assert_eq!(there.terminate().await, Some(0));
        assert_eq!(followed.chunk().await.expect("the log ends without an error"), None);
        let refused = client.runtime_logs("model", None).await.expect_err("no agent runs on the node");
        assert_eq!((refused.status(), refused.code()), (Some(503), Some("service_unavailable")), "{refused}");
        assert!(refused.to_string().contains("the node far, which has the container, does not respond"), "{refused}");
        // The end of a killed agent is detected by its missing heartbeats.
        let mut there = far.agent(&fixture).await;
        let mut followed = follow(&client).await;
        there.kill().await;
        let broken = followed.chunk().await.expect_err("the agent was killed");
        assert!(!broken.is_timeout(), "{broken}");
    })
    .await;
}

/// Requirement R1.
#[tokio::test]
async fn an_agent_refuses_a_sqlite_database() {
    let refused = windlass(&["agent", "--database", "sqlite:x.db"]).await;
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert_eq!(refused.stderr.lines().count(), 1, "one sentence: {}", refused.stderr);
    assert!(refused.stderr.contains("postgres://"), "{}", refused.stderr);
}
