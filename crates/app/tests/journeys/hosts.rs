//! Several machines on one database, each with a Docker engine of its own (R1, R5, R9).

use std::collections::BTreeMap;
use std::time::Duration;

use client::wire::{OperationView, PlacementSettings, PortSettings, ProbeSettings, RuntimeRequest, RuntimeView};
use client::{Client, Operated, RuntimeVerb};
use testkit::docker::{Docker, IMAGE, SERVE};

use crate::support::{OwnEngine, Place, Program, Serve, Server, insist, is_passing, on_postgres, until, windlass};

/// For how many seconds another machine is silent before one takes over what may be moved.
const SOON: &str = "20";
const NEVER: &str = "3600";

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

/// A machine: its engine, what it is called, and how a process on it is started.
struct Machine {
    name: &'static str,
    labels: &'static str,
    docker: Docker,
    _engine: OwnEngine,
}

impl Machine {
    fn new(name: &'static str, labels: &'static str) -> Self {
        let engine = OwnEngine::start();
        Self { name, labels, docker: engine.docker(), _engine: engine }
    }

    async fn serve(&self, place: &Place, move_after_s: &str) -> Server {
        let serve = Serve::on(place).env("WINDLASS_DOCKER_HOST", &self.docker.host).env("WINDLASS_NODE", self.name);
        serve.env("WINDLASS_ENGINE_LABEL", self.labels).env("WINDLASS_MOVE_AFTER_S", move_after_s).start().await
    }

    /// The same without an API.
    async fn agent(&self, place: &Place) -> Program {
        let data = place.path("data").display().to_string();
        let args = ["agent", "--database", &place.url, "--data-dir", &data, "--docker-host", &self.docker.host];
        let args = args.into_iter().chain(["--node", self.name, "--engine-label", self.labels]);
        let program = Program::windlass(place, args);
        until("the agent drives its engine", async || program.stdout().contains("drives").then_some(())).await;
        program
    }

    fn containers(&self, runtime: &str) -> Vec<String> {
        self.docker.labelled(&format!("windlass.runtime={runtime}"))
    }
}

/// The runtime once it is well on this node.
async fn well(client: &Client, name: &str, node: &str) -> RuntimeView {
    until(&format!("{name} is well on {node}"), async || {
        let runtime = client.runtime(name).await.expect("is there");
        let healthy = runtime.health.as_ref().is_some_and(|health| health.status == "healthy");
        let there = runtime.node.as_deref() == Some(node) && runtime.status == "running";
        (healthy && there && runtime.in_flight.is_none()).then_some(runtime)
    })
    .await
}

/// Asks for an operation, and gives the line of its first try once that has ended.
async fn operated(client: &Client, name: &str, verb: RuntimeVerb) -> OperationView {
    let asked = client.operate_runtime(name, verb, None, Duration::ZERO, "api").await.expect("is answered");
    let Operated::Accepted(accepted) = asked else { panic!("nobody waited for it: {asked:?}") };
    until(&format!("{verb:?} of {name} has ended"), async || {
        let log = client.runtime_operations(name, None).await.expect("is told").items;
        log.into_iter().find(|line| line.id == accepted.operation_id && line.finished_at.is_some())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn r1_a_runtime_waits_for_the_machine_that_has_its_label_and_starts_on_its_engine() {
    on_postgres(async |place: Place| {
        let (near, far) = (Machine::new("near", "zone=a"), Machine::new("far", "gpu=a100,zone=b"));
        let here = near.serve(&place, SOON).await;
        let client = here.client();
        client.set_runtime("model", &request(&[("gpu", "a100")])).await.expect("is declared");
        let line = operated(&client, "model", RuntimeVerb::Start).await;
        assert_eq!(line.error_code.as_deref(), Some("service_unavailable"));
        assert_eq!(line.error_message.as_deref(), Some("no node has gpu=a100"));
        let mut there = far.agent(&place).await;
        let runtime = well(&client, "model", "far").await;
        assert_eq!(far.containers("model"), [runtime.container_id.expect("has a container")]);
        assert_eq!(near.containers("model"), Vec::<String>::new());
        // Stopped by way of one node, it is stopped on the other.
        let stopped = operated(&client, "model", RuntimeVerb::CleanUp).await;
        assert_eq!(stopped.outcome.as_deref(), Some("success"), "{stopped:?}");
        assert_eq!(far.containers("model"), Vec::<String>::new());
        let nodes = until("both nodes are heard", async || {
            let nodes = client.nodes().await.expect("are listed").items;
            nodes.iter().all(|node| !node.is_lost).then_some(nodes)
        })
        .await;
        let told: Vec<_> = nodes.iter().map(|node| (node.name.as_str(), node.slots_taken)).collect();
        assert_eq!(told, [("far", 0), ("near", 0)]);
        assert_eq!(nodes[0].labels.get("gpu").map(String::as_str), Some("a100"));
        assert_eq!(there.terminate().await, Some(0), "an agent stops when it is asked to");
        place.verify().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r5_the_runtimes_of_a_lost_machine_wait_for_it_or_are_moved_and_what_is_left_behind_is_disposed_of() {
    on_postgres(async |place: Place| {
        let (near, far) = (Machine::new("near", "zone=a"), Machine::new("far", "zone=b"));
        let mut there = far.serve(&place, NEVER).await;
        let client = there.client();
        let movable = RuntimeRequest { movable: Some(true), ..request(&[]) };
        for (name, request) in [("stays", &request(&[("zone", "b")])), ("goes", &movable)] {
            client.set_runtime(name, request).await.expect("is declared");
            client.operate_runtime(name, RuntimeVerb::Start, None, Duration::ZERO, "api").await.expect("is asked for");
        }
        let stays = well(&client, "stays", "far").await;
        let left_behind = well(&client, "goes", "far").await.container_id.expect("has a container");
        // First the one goes, then the other comes: nothing is taken from a machine that is there and only slow.
        there.program.kill().await;
        let here = near.serve(&place, SOON).await;
        let client = here.client();

        let unavailable = until("its node is lost", async || {
            let runtime = client.runtime("stays").await.expect("is there");
            (runtime.status == "unavailable").then_some(runtime)
        })
        .await;
        let notice = unavailable.notice.expect("says why");
        assert!(notice.contains("its node far has been silent for"), "{notice}");
        assert!(notice.contains("windlass runtime move stays"), "{notice}");
        // What is asked for meanwhile waits, and says for whom.
        let asked = client.operate_runtime("stays", RuntimeVerb::Restart, None, Duration::ZERO, "api").await;
        let Operated::Accepted(waits) = asked.expect("is accepted") else { panic!("nobody is there to do it") };
        until("its signal says so", async || {
            let signal = client.signal(waits.job_id).await.expect("is answered").expect("is told");
            signal.summary.contains("The node far, which is to do it, has been silent").then_some(())
        })
        .await;

        let moved = well(&client, "goes", "near").await;
        assert_eq!(near.containers("goes"), [moved.container_id.clone().expect("has a container")]);
        let log = client.runtime_operations("goes", None).await.expect("is told").items;
        let start = log.iter().find(|line| line.source == "auto_reconcile").expect("by an operation");
        let why = start.source_ref.clone().unwrap_or_default();
        assert!(why.starts_with("moved from far to near: far has been silent for"), "{why}");
        assert_eq!(far.containers("goes"), std::slice::from_ref(&left_behind), "nobody was there to remove it");

        // The machine comes back. What stayed is as it was, restarted once as it was asked; what was moved is disposed of.
        let _there = far.serve(&place, NEVER).await;
        let back = until("it is there again", async || {
            let runtime = client.runtime("stays").await.expect("is there");
            (runtime.status == "running" && runtime.in_flight.is_none() && runtime.started_at > stays.started_at)
                .then_some(runtime)
        })
        .await;
        assert_eq!(back.notice, None);
        assert_eq!(far.containers("stays"), [back.container_id.expect("has a container")], "one, and no other");
        until("what was left behind is gone", async || far.containers("goes").is_empty().then_some(())).await;
        let disposed = until("it is written down", async || {
            let log = client.runtime_operations("goes", None).await.expect("is told").items;
            log.into_iter().find(|line| line.kind == "reconcile_dispose")
        })
        .await;
        assert_eq!(disposed.container_id.as_deref(), Some(left_behind.as_str()));
        assert_eq!(disposed.source_ref.as_deref(), Some("its runtime was moved to near"));
        let goes = client.runtime("goes").await.expect("is there");
        assert_eq!((goes.node.as_deref(), goes.container_id), (Some("near"), moved.container_id), "and runs on");
        place.verify().await;
    })
    .await;
}

/// Writes three lines, and a fourth when it is told to.
const TALK: &str = "trap 'exit 0' TERM; trap 'echo four' USR1; echo one; echo two; echo three; \
                    while :; do sleep 1000 & wait; done";

/// A runtime on the machine `far` that talks; its container.
async fn talking(client: &Client) -> String {
    let command = Some(vec!["sh".into(), "-c".into(), TALK.into()]);
    let talks = RuntimeRequest { command, ports: None, probe: None, ..request(&[("zone", "b")]) };
    client.set_runtime("model", &talks).await.expect("is declared");
    client.operate_runtime("model", RuntimeVerb::Start, None, Duration::ZERO, "api").await.expect("is asked for");
    well(client, "model", "far").await.container_id.expect("has a container")
}

/// Its log from the third line on. An agent that is slow for a while is waited out.
async fn follow(client: &Client) -> reqwest::Response {
    until("its lines are there", async || {
        let logs = insist(async || client.runtime_logs("model", None).await).await;
        logs.text().await.expect("comes whole").contains("three\n").then_some(())
    })
    .await;
    let mut followed = insist(async || client.follow_runtime_logs("model", Some(1)).await).await;
    hear(&mut followed, "three\n").await;
    followed
}

/// This comes next.
async fn hear(followed: &mut reqwest::Response, line: &str) {
    let mut came = String::new();
    while came.len() < line.len() {
        let more = followed.chunk().await.expect("does not break off").expect("does not end");
        came.push_str(&String::from_utf8_lossy(&more));
    }
    assert_eq!(came, line);
}

#[tokio::test(flavor = "multi_thread")]
async fn r9_logs_of_a_runtime_on_another_node_are_tailed_and_followed() {
    on_postgres(async |place: Place| {
        let (near, far) = (Machine::new("near", "zone=a"), Machine::new("far", "zone=b"));
        let here = near.serve(&place, NEVER).await;
        let _there = far.agent(&place).await;
        let client = here.client();
        let container = talking(&client).await;
        let mut followed = follow(&client).await;
        let tail = insist(async || client.runtime_logs("model", Some(2)).await).await;
        assert_eq!(tail.text().await.expect("comes whole"), "two\nthree\n");
        far.docker.run(&["kill", "--signal", "USR1", &container]);
        hear(&mut followed, "four\n").await;
        // Who leaves leaves nothing behind.
        let readings = async || place.count("select count(*) from windlass.log_readings").await;
        assert_eq!(readings().await, 1);
        drop(followed);
        until("it is forgotten", async || (readings().await == 0).then_some(())).await;
        // What the engine there refuses is refused here in the same words.
        far.docker.run(&["rm", "--force", &container]);
        let refused = until("the refusal is told", async || {
            client.runtime_logs("model", None).await.err().filter(|error| !is_passing(error))
        })
        .await;
        assert_eq!((refused.status(), refused.code()), (Some(404), Some("not_found")), "{refused}");
        place.verify().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r9_the_log_of_a_machine_that_is_gone_breaks_off_and_the_machine_is_named() {
    on_postgres(async |place: Place| {
        let (near, far) = (Machine::new("near", "zone=a"), Machine::new("far", "zone=b"));
        let here = near.serve(&place, NEVER).await;
        let mut there = far.agent(&place).await;
        let client = here.client();
        talking(&client).await;
        // One that is asked to stop says that this is the end.
        let mut followed = follow(&client).await;
        assert_eq!(there.terminate().await, Some(0));
        assert_eq!(followed.chunk().await.expect("ends as it should"), None);
        let refused = client.runtime_logs("model", None).await.expect_err("nobody is there to read it");
        assert_eq!((refused.status(), refused.code()), (Some(503), Some("service_unavailable")), "{refused}");
        assert!(refused.to_string().contains("the node far, which does not answer"), "{refused}");
        // One that is killed says nothing, which is noticed.
        let mut there = far.agent(&place).await;
        let mut followed = follow(&client).await;
        there.kill().await;
        let broken = followed.chunk().await.expect_err("it cannot go on");
        assert!(!broken.is_timeout(), "{broken}");
    })
    .await;
}

#[tokio::test]
async fn r1_an_agent_refuses_a_database_that_it_cannot_share() {
    let refused = windlass(&["agent", "--database", "sqlite:x.db"]).await;
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert_eq!(refused.stderr.lines().count(), 1, "one sentence: {}", refused.stderr);
    assert!(refused.stderr.contains("postgres://"), "{}", refused.stderr);
}
