//! A fleet by the real programs: a process makes work, a worker dies in the middle of it, a person locks out (W3, W5, X4).

use std::time::{Duration, Instant};

use client::Client;
use client::wire::{ProcessRequest, SubjectRequest};
use serde_json::{Value, json};

use crate::support::{PATIENCE, Place, Server, Work, on_both, until, windlass};

async fn declare(client: &Client, name: &str, settings: Value) {
    let request: ProcessRequest = serde_json::from_str(&settings.to_string()).expect("valid settings");
    client.set_process(name, &request).await.expect("the process is taken");
}

async fn set(client: &Client, subject: &str, facts: Value) {
    let facts = serde_json::from_str(&facts.to_string()).expect("facts");
    client.set_subject(subject, &SubjectRequest { kind: None, facts }).await.expect("the facts are taken");
}

fn install(backoff_s: u64) -> Value {
    json!({
        "selector": {"all": [{"fact": "state", "equals": "provided"}]}, "queue": "q", "kind": "install",
        "backoff": {"initial_s": backoff_s},
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn x4_a_worker_killed_in_mid_work_frees_its_subject_within_the_lease_and_a_second() {
    on_both(async |place: Place| {
        let server = Server::start(&place).await;
        let client = server.client();
        declare(&client, "install", install(3_600)).await;
        let deadline = Instant::now() + PATIENCE;
        let mut took: Vec<Option<Duration>> = Vec::new();
        // A busy machine may be late at any one of them, not at all.
        while took.iter().flatten().all(|took| *took >= Duration::from_secs(3)) {
            assert!(Instant::now() < deadline, "it took {took:?}");
            took.push(freed_after_a_kill(&place, &server, took.len()).await);
        }
    })
    .await;
}

/// How long a subject stays taken whose worker, with a lease of two seconds, was killed. `None` when a busy machine had let
/// that lease pass before.
async fn freed_after_a_kill(place: &Place, server: &Server, number: usize) -> Option<Duration> {
    let client = server.client();
    let (subject, begun) = (format!("m-{number}"), format!("begun-{number}"));
    let script = format!("mark {begun}; wait_for never");
    let mut worker = Work::start(place, server, "q", &["--lease-s", "2"], &script);
    set(&client, &subject, json!({"state": "provided"})).await;
    until("the work has begun", async || place.path(&begun).exists().then_some(())).await;
    let held = client.process("install").await.expect("it is there").active == 1;
    worker.kill().await;
    let killed = Instant::now();
    until("the subject is free", async || {
        let process = client.process("install").await.expect("it is there");
        (process.active == 0).then_some(())
    })
    .await;
    let took = killed.elapsed();
    let told = client.subject(&subject).await.expect("it is there");
    assert_eq!((told.work.map(|work| work.len()), told.backoffs[0].cause.as_str()), (Some(0), "expired"));
    held.then_some(took)
}

#[tokio::test(flavor = "multi_thread")]
async fn w5_the_command_line_shows_locks_out_releases_and_tells() {
    on_both(async |place: Place| {
        let server = Server::start(&place).await;
        let run = async |args: &[&str]| {
            let mut all = args.to_vec();
            all.extend(["--url", &server.url]);
            windlass(&all).await
        };
        let selector = r#"{"all": [{"fact": "state", "equals": "provided"}]}"#;
        let set = ["process", "set", "install", "--selector", selector, "--queue", "q", "--kind", "k"];
        let done = run(&set).await;
        assert_eq!(done.code, Some(0), "{done:?}");
        assert!(done.stdout.contains("state is \"provided\""), "{done:?}");
        let done = run(&["process", "set", "install", "--max-active", "1"]).await;
        assert!(done.stdout.contains("at once") && done.stdout.contains("queue q"), "{done:?}");
        for machine in ["m-1", "m-2"] {
            let done = run(&["subject", "set", machine, "--kind", "machine", "cores=8", "state=provided"]).await;
            assert_eq!(done.code, Some(0), "{done:?}");
        }
        let lockout = ["subject", "lockout", "m-1", "--cause", "bad disk", "--for", "2h"];
        assert_eq!(run(&lockout).await.code, Some(0));
        let card = run(&["subject", "show", "m-1"]).await.stdout;
        for part in
            ["LOCKED OUT by local: bad disk", "HELD OFF", "every process", "FACTS", "cores", "LATELY", "locked_out"]
        {
            assert!(card.contains(part), "{part} is not on\n{card}");
        }
        let listed = run(&["subject", "list"]).await.stdout;
        assert!(listed.contains("m-2") && listed.contains("every process in"), "{listed}");
        assert_eq!(run(&["subject", "release", "m-1"]).await.code, Some(0));
        assert_eq!(run(&["subject", "release", "m-1"]).await.code, Some(4), "there is nothing to release");
        until("one is active and one eligible", async || {
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
