//! Subjects with the real binary: a process creates work, a worker is killed during it, a user locks a subject out.

use std::time::{Duration, Instant};

use client::Client;
use client::wire::{ProcessRequest, SubjectRequest};
use serde_json::{Value, json};

use crate::support::{Fixture, Server, TIMEOUT, Work, eventually, on_both, try_eventually, windlass};

async fn set_process(client: &Client, name: &str, settings: Value) {
    let request: ProcessRequest = serde_json::from_str(&settings.to_string()).expect("valid settings");
    client.set_process(name, &request).await.expect("the process is accepted");
}

async fn set_facts(client: &Client, subject: &str, facts: Value) {
    let facts = serde_json::from_str(&facts.to_string()).expect("facts");
    client.set_subject(subject, &SubjectRequest { kind: None, facts }).await.expect("the facts are accepted");
}

fn install(backoff_s: u64) -> Value {
    json!({
        "selector": {"all": [{"fact": "state", "equals": "provided"}]}, "queue": "q", "kind": "install",
        "backoff": {"initial_s": backoff_s},
    })
}

/// Requirement X4.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_worker_frees_its_subject_within_one_second_after_the_lease() {
    on_both(async |fixture: Fixture| {
        let server = Server::start(&fixture).await;
        let client = server.client();
        set_process(&client, "install", install(3_600)).await;
        let mut delays: Vec<Option<Duration>> = Vec::new();
        // A busy machine may delay any single attempt, but not all of them.
        let freed = try_eventually(TIMEOUT, async || {
            delays.push(delay_after_kill(&fixture, &server, delays.len()).await);
            delays.last().copied().flatten().filter(|delay| *delay < Duration::from_secs(3))
        });
        assert!(freed.await.is_some(), "the subject was freed after {delays:?}");
    })
    .await;
}

/// Kills a worker with a lease of two seconds and measures how long its subject stays busy. Returns `None` if the lease
/// had already expired on a busy machine.
async fn delay_after_kill(fixture: &Fixture, server: &Server, number: usize) -> Option<Duration> {
    let client = server.client();
    let (subject, started) = (format!("m-{number}"), format!("started-{number}"));
    let script = format!("mark {started}; wait_for never");
    let mut worker = Work::start(fixture, server, "q", &["--lease-s", "2"], &script);
    set_facts(&client, &subject, json!({"state": "provided"})).await;
    eventually("the work has started", async || fixture.path(&started).exists().then_some(())).await;
    let was_active = client.process("install").await.expect("the process exists").active == 1;
    worker.kill().await;
    let killed = Instant::now();
    eventually("the subject is free", async || {
        let process = client.process("install").await.expect("the process exists");
        (process.active == 0).then_some(())
    })
    .await;
    let delay = killed.elapsed();
    let view = client.subject(&subject).await.expect("the subject exists");
    assert_eq!(view.work.map(|work| work.len()), Some(0));
    assert_eq!(view.backoffs[0].cause, "expired: the worker's lease expired");
    was_active.then_some(delay)
}

/// Requirement W5.
#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_shows_locks_out_and_releases_subjects() {
    on_both(async |fixture: Fixture| {
        let server = Server::start(&fixture).await;
        let run = async |args: &[&str]| {
            let mut all = args.to_vec();
            all.extend(["--url", &server.url]);
            windlass(&all).await
        };
        let selector = r#"{"all": [{"fact": "state", "equals": "provided"}]}"#;
        let set = ["process", "set", "install", "--selector", selector, "--queue", "q", "--kind", "k"];
        let output = run(&set).await;
        assert_eq!(output.code, Some(0), "{output:?}");
        assert!(output.stdout.contains("state is \"provided\""), "{output:?}");
        let output = run(&["process", "set", "install", "--max-active", "1"]).await;
        assert!(output.stdout.contains("max active") && output.stdout.contains("queue q"), "{output:?}");
        for machine in ["m-1", "m-2"] {
            let output = run(&["subject", "set", machine, "--kind", "machine", "cores=8", "state=provided"]).await;
            assert_eq!(output.code, Some(0), "{output:?}");
        }
        let lockout = ["subject", "lockout", "m-1", "--cause", "bad disk", "--for", "2h"];
        assert_eq!(run(&lockout).await.code, Some(0));
        let card = run(&["subject", "show", "m-1"]).await.stdout;
        for part in [
            "LOCKED OUT by local: bad disk",
            "BACKOFFS",
            "every process",
            "FACTS",
            "cores",
            "RECENT EVENTS",
            "locked_out",
        ] {
            assert!(card.contains(part), "{part} is not in\n{card}");
        }
        let listed = run(&["subject", "list"]).await.stdout;
        assert!(listed.contains("m-2") && listed.contains("every process in"), "{listed}");
        assert_eq!(run(&["subject", "release", "m-1"]).await.code, Some(0));
        assert_eq!(run(&["subject", "release", "m-1"]).await.code, Some(4), "m-1 has nothing to release");
        eventually("one subject is active and one eligible", async || {
            let listed = run(&["process", "list"]).await.stdout;
            listed.contains("1         1/1").then_some(())
        })
        .await;
        let eligible = run(&["process", "eligible", "install"]).await.stdout;
        assert_eq!(eligible.lines().count(), 2, "{eligible}");
        let history = run(&["subject", "history", "m-1"]).await.stdout;
        assert!(history.contains("let_in") && history.contains("cores=8"), "{history}");
        let busy = run(&["subject", "delete", "m-2"]).await;
        let free = run(&["subject", "delete", "m-1"]).await;
        let codes = [busy.code, free.code];
        assert!(codes.contains(&Some(3)) && codes.contains(&Some(0)), "one of them has a job: {busy:?} {free:?}");
        let token = run(&["subject", "credential", if busy.code == Some(3) { "m-2" } else { "m-1" }]).await;
        assert!(token.stdout.starts_with("wlsub_"), "{token:?}");
    })
    .await;
}
