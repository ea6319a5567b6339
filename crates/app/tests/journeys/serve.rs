//! `windlass serve`: start, settings, refused requests, graceful stop and metrics.

use std::io::Write;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use client::wire::{ClaimRequest, WorkerRequest};
use client::{ClientError, DeliveryFilter, JobFilter};
use serde_json::{Value, json};
use tokio::net::TcpSocket;

use crate::support::{
    CommandOutput, Fixture, Server, Work, ended, eventually, failed_start, http, is_transient, on_both, on_postgres,
    push, windlass,
};

fn assert_one_sentence(output: &CommandOutput, part: &str) {
    assert_ne!(output.code, Some(0), "{output:?}");
    assert_eq!(output.stderr.lines().count(), 1, "one sentence: {}", output.stderr);
    assert!(output.stderr.contains(part), "{part:?} is not in: {}", output.stderr);
    assert!(!output.stdout.contains("serves on"), "{}", output.stdout);
}

/// Requirement X9.
#[tokio::test(flavor = "multi_thread")]
async fn a_port_in_use_is_reported_before_the_database_is_opened() {
    let fixture = Fixture::sqlite();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("the listener has an address").to_string();
    let output = failed_start(fixture.folder(), &["--listen", &address, "--database", &fixture.url]).await;
    assert_one_sentence(&output, &format!("{address} is in use"));
    assert!(output.stderr.contains("another --listen"), "{}", output.stderr);
    let mail = ["--listen", "127.0.0.1:0", "--smtp-listen", &address, "--database", &fixture.url];
    assert_one_sentence(&failed_start(fixture.folder(), &mail).await, "another --smtp-listen");
    assert!(!fixture.path("journey.db").exists());
}

/// Requirement X9.
#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_postgres_is_reported_by_address_without_its_password() {
    let fixture = Fixture::sqlite();
    // A bound port without a listener: no other program can respond there.
    let bound = TcpSocket::new_v4().expect("a socket");
    bound.bind(([127, 0, 0, 1], 0).into()).expect("a port is free");
    let here = bound.local_addr().expect("the socket has an address").to_string();
    for (host, part) in [(here.as_str(), here.as_str()), ("nowhere.invalid", "nowhere.invalid:5432")] {
        let url = format!("postgres://me:s3cret@{host}/jobs");
        let output = failed_start(fixture.folder(), &["--listen", "127.0.0.1:0", "--database", &url]).await;
        assert_one_sentence(&output, part);
        assert!(!output.stderr.contains("s3cret"), "{output:?}");
        if host == here {
            assert!(output.stderr.contains("refused"), "the error includes its cause: {output:?}");
        }
    }
}

/// Requirement X2.
#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_without_synchronous_commit_is_refused_without_the_unsafe_flag() {
    on_postgres(async |fixture| {
        fixture.admin_sql("alter database $database set synchronous_commit = off").await;
        let args = ["--listen", "127.0.0.1:0", "--database", &fixture.url];
        let output = failed_start(fixture.folder(), &args).await;
        assert_one_sentence(&output, "synchronous_commit=off");
        assert!(output.stderr.contains("--unsafe"), "the error says what to do: {output:?}");
        let mut server = Server::with(fixture.folder(), &[&args[..], &["--unsafe"]].concat(), &[]).await;
        push(&server.client(), "q", json!(1)).await;
        assert_eq!(server.program.terminate().await, Some(0), "{}", server.program.stderr());
    })
    .await;
}

/// Requirement Q9.
#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_artifact_location_is_rejected() {
    let fixture = Fixture::sqlite();
    let args = ["--listen", "127.0.0.1:0", "--database", &fixture.url, "--artifacts", "gs://bucket/prefix"];
    assert_one_sentence(&failed_start(fixture.folder(), &args).await, "s3://BUCKET/PREFIX");
}

/// Requirement X7.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_tokens_listens_only_on_loopback() {
    let fixture = Fixture::sqlite();
    for address in ["0.0.0.0:0", "[::]:0"] {
        let output = failed_start(fixture.folder(), &["--listen", address, "--database", &fixture.url]).await;
        assert_one_sentence(&output, "loopback only");
    }
}

/// Requirement X7.
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_host_or_origin_header_is_rejected() {
    let fixture = Fixture::sqlite();
    let server = Server::start(&fixture).await;
    let http = http();
    let url = format!("{}/api/v1/jobs", server.url);
    let body = r#"{"queue": "q", "kind": "k"}"#;
    let post = || http.post(&url).header("Content-Type", "application/json").body(body);
    let refused = [
        http.get(&url).header("Host", "evil.example"),
        http.get(&server.url).header("Host", "evil.example:7717"),
        post().header("Host", "evil.example"),
        post().header("Origin", "https://evil.example"),
    ];
    for request in refused {
        let response = request.send().await.expect("the server responds");
        assert_eq!(response.status(), 403);
        assert_eq!(response.headers()["content-type"], "application/problem+json");
        let problem: Value = response.json().await.expect("a problem document");
        assert_eq!(problem["code"], "host_not_allowed");
    }
    let allowed = post().header("Host", "localhost:80").send().await.expect("the server responds");
    assert_eq!(allowed.status(), 202);
    let jobs = server.client().jobs(&JobFilter::default()).await.expect("jobs are listed");
    assert_eq!(jobs.items.len(), 1, "rejected requests had no effect");
}

/// Requirement X11.
#[tokio::test(flavor = "multi_thread")]
async fn the_demo_starts_immediately_and_removes_its_database() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let temporary = folder.path().join("tmp");
    std::fs::create_dir(&temporary).expect("creates the folder");
    let env = [("TMPDIR", temporary.to_str().expect("the path is text"))];
    let mut server = Server::with(folder.path(), &["--demo", "--listen", "127.0.0.1:0"], &env).await;
    let started = Instant::now();
    assert_eq!(std::fs::read_dir(&temporary).expect("the folder exists").count(), 1, "the database is temporary");
    let http = http();
    for (path, kind) in [("/", "text/html"), ("/readyz", "application/json"), ("/healthz", "application/json")] {
        let response = http.get(format!("{}{path}", server.url)).send().await.expect("the server responds");
        assert_eq!(response.status(), 200, "{path}");
        let content_type = response.headers()["content-type"].to_str().expect("a header is text");
        assert!(content_type.starts_with(kind), "{path}: {content_type}");
    }
    let client = server.client();
    let succeeded = JobFilter { state: Some("succeeded".into()), ..JobFilter::default() };
    eventually("a job of the demo has succeeded", async || {
        let jobs = client.jobs(&succeeded).await.expect("jobs are listed");
        (!jobs.items.is_empty()).then_some(())
    })
    .await;
    println!("a job succeeded after {:?}", started.elapsed());
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
    eventually("a machine of the demo is installed", async || {
        let subject = client.subject("machine-1").await.ok()?;
        (subject.facts.get("state")?.value.get() == "\"installed\"").then_some(())
    })
    .await;
    eventually("the disk of a machine is dead", async || {
        let subject = client.subject("machine-4").await.expect("the subject exists");
        subject.backoffs.iter().any(|backoff| backoff.cause.contains("DISK_DEAD")).then_some(())
    })
    .await;
    eventually("a webhook of the demo is delivered", async || {
        let filter = DeliveryFilter { state: Some("delivered".into()), ..DeliveryFilter::default() };
        (!client.deliveries(&filter).await.expect("deliveries are listed").items.is_empty()).then_some(())
    })
    .await;
    eventually("triggers of the demo fired", async || {
        let triggers = client.triggers(None).await.expect("triggers are listed").items;
        let fired = |name: &str| triggers.iter().any(|trigger| trigger.name == name && trigger.last_fired_at.is_some());
        ["receipt", "count-orders", "price-change", "pipeline-changed", "broken-scan"]
            .into_iter()
            .all(fired)
            .then_some(())
    })
    .await;
    assert_eq!(server.program.terminate().await, Some(0), "{}", server.program.stderr());
    assert_eq!(std::fs::read_dir(&temporary).expect("the folder exists").count(), 0, "the database was removed");
}

/// Requirement X9.
#[tokio::test(flavor = "multi_thread")]
async fn settings_come_from_flags_then_the_environment_then_a_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let database = |name: &str| format!("sqlite:{}", folder.path().join(name).display());
    let file = folder.path().join("windlass.toml");
    let text = format!("listen = \"127.0.0.1:0\"\ndatabase = \"{}\"\npayload_bytes = 20\n", database("file.db"));
    std::fs::write(&file, text).expect("writes the file");
    let config = ["--config", file.to_str().expect("the path is text")];
    let exists = |name: &str| folder.path().join(name).exists();

    let server = Server::with(folder.path(), &config, &[]).await;
    assert!(exists("file.db"));
    let long = server.client().enqueue(&crate::support::job("q", json!("longer than twenty bytes"))).await;
    assert!(matches!(long.unwrap_err().status(), Some(413 | 422)), "payload_bytes of the file applies");
    push(&server.client(), "q", json!("short")).await;
    drop(server);

    let env = [("WINDLASS_DATABASE", database("environment.db"))];
    let env = env.each_ref().map(|(name, value)| (*name, value.as_str()));
    drop(Server::with(folder.path(), &config, &env).await);
    assert!(exists("environment.db"));

    let flag = database("flag.db");
    drop(Server::with(folder.path(), &[&config[..], &["--database", &flag]].concat(), &env).await);
    assert!(exists("flag.db"));

    std::fs::write(&file, "lisen = \"127.0.0.1:0\"").expect("writes the file");
    let output = failed_start(folder.path(), &config).await;
    assert_eq!(output.code, Some(2), "{output:?}");
    assert!(output.stderr.contains("unknown setting `lisen`"), "{}", output.stderr);
}

/// Requirement X9.
#[tokio::test(flavor = "multi_thread")]
async fn a_newer_schema_is_refused_with_its_version() {
    on_both(async |fixture| {
        let mut server = Server::start(&fixture).await;
        assert_eq!(server.program.terminate().await, Some(0));
        let (table, now) = match fixture.is_postgres() {
            true => ("windlass.schema_migrations", "now()"),
            false => ("schema_migrations", "1"),
        };
        let insert =
            format!("insert into {table} (version, name, checksum, applied_at) values (999, 'later', '', {now})");
        fixture.sql(&insert).await;
        let output = failed_start(fixture.folder(), &["--listen", "127.0.0.1:0", "--database", &fixture.url]).await;
        assert_one_sentence(&output, "schema version 999");
        assert!(output.stderr.contains("newer windlass"), "{}", output.stderr);
        let commands: [&[&str]; 5] =
            [&["migrate", "up"], &["verify"], &["doctor"], &["tenant", "list"], &["token", "list"]];
        for command in commands {
            let output = windlass(&[command, &["--database", &fixture.url]].concat()).await;
            assert_eq!(output.code, Some(1), "{command:?} {output:?}");
            assert!(format!("{}{}", output.stdout, output.stderr).contains("newer windlass"), "{command:?} {output:?}");
        }
    })
    .await;
}

/// Requirement Q7.
#[tokio::test(flavor = "multi_thread")]
async fn a_graceful_stop_answers_open_long_polls_immediately() {
    on_both(async |fixture| {
        // The client cannot see whether a poll is open. A stop before the polls are open proves nothing and is
        // repeated.
        eventually("a stop answers open polls", async || stop_with_open_polls(&fixture).await).await;
    })
    .await;
}

/// Stops a server during a claim and a long poll of a job. Returns `None` if one of them got no response, which proves
/// nothing: it may not have been open yet, or a busy machine exceeded the ten seconds for requests in flight.
async fn stop_with_open_polls(fixture: &Fixture) -> Option<()> {
    let mut server = Server::start(fixture).await;
    let client = server.client();
    let (queues, lease_s) = (vec!["empty".into()], Some(3_600));
    let request = WorkerRequest { name: "w".into(), queues, lease_s, ..WorkerRequest::default() };
    let worker = client.register_worker(&request).await.expect("the worker is registered").id;
    let id = push(&client, "q", json!(1)).await;
    let claim = ClaimRequest { max: 1, wait_s: Some(50.0), ..ClaimRequest::default() };
    let (claimed, job, code) =
        tokio::join!(client.claim(worker, &claim), client.wait_for_job(id, Duration::from_secs(50)), async {
            // These requests come after the long polls, and they are so many that the polls are most likely open.
            for _ in 0..50 {
                client.job(id).await.expect("the job exists");
            }
            server.program.terminate().await
        });
    assert_eq!(code, Some(0));
    let (claimed, job) = (response(claimed)?, response(job)?);
    assert_eq!(claimed.jobs.len(), 0);
    assert_eq!(job.state, "queued");
    // The stop waits for requests in flight, and none was in flight.
    (!server.program.stderr().contains("still in flight")).then_some(())
}

fn response<T>(result: Result<T, ClientError>) -> Option<T> {
    match result {
        Ok(response) => Some(response),
        Err(error) if is_transient(&error) => None,
        Err(error) => panic!("rejected: {error}"),
    }
}

/// Requirement X11.
#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_pass_promtool() {
    on_both(async |fixture| {
        let server = Server::start(&fixture).await;
        let client = server.client();
        let _work = Work::start(&fixture, &server, "q", &[], "cat");
        ended(&client, push(&client, "q", json!(1)).await).await;
        let response = http().get(format!("{}/metrics", server.url)).send().await.expect("the server responds");
        assert_eq!(response.status(), 200);
        let text = response.text().await.expect("the body is complete");
        assert!(text.contains("windlass_jobs_claimed_total 1"), "{text}");
        let mut promtool = Command::new("promtool");
        promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut promtool = promtool.spawn().expect("promtool is missing: install the Debian package prometheus");
        let mut stdin = promtool.stdin.take().expect("stdin is piped");
        stdin.write_all(text.as_bytes()).expect("promtool reads");
        drop(stdin);
        let output = promtool.wait_with_output().expect("promtool ends");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}\n{text}");
    })
    .await;
}

/// Runs `promtool check rules` on a file.
fn check_rules(file: &std::path::Path) {
    let checked = Command::new("promtool").args(["check", "rules"]).arg(file).output();
    let checked = checked.expect("promtool is missing: install the Debian package prometheus");
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

/// Requirement S5.
#[test]
fn the_alert_rules_and_dashboard_expressions_pass_promtool() {
    let deploy = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    check_rules(&deploy.join("prometheus/windlass-rules.yml"));
    let dashboard = std::fs::read(deploy.join("grafana/windlass.json")).expect("the dashboard exists");
    let dashboard: Value = serde_json::from_slice(&dashboard).expect("the dashboard is JSON");
    let panels = dashboard["panels"].as_array().expect("the dashboard has panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().expect("a panel has targets"));
    // promtool checks expressions only as rules. JSON is valid YAML.
    let rules: Vec<Value> = targets
        .enumerate()
        .map(|(n, target)| json!({"record": format!("panel:{n}"), "expr": target["expr"]}))
        .collect();
    assert!(rules.len() >= 6);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("dashboard.yml");
    std::fs::write(&file, json!({"groups": [{"name": "dashboard", "rules": rules}]}).to_string())
        .expect("writes the file");
    check_rules(&file);
}
