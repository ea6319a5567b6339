//! `windlass serve`: how it starts, whom it answers, how it stops (X7, X9, X11).

use std::io::Write;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use client::wire::{ClaimRequest, WorkerRequest};
use client::{ClientError, JobFilter};
use serde_json::{Value, json};
use tokio::net::TcpSocket;

use crate::support::{
    Done, Place, Server, Work, ended, http, is_passing, on_both, on_postgres, push, refused, until, windlass,
};

fn assert_one_sentence(done: &Done, words: &str) {
    assert_ne!(done.code, Some(0), "{done:?}");
    assert_eq!(done.stderr.lines().count(), 1, "one sentence: {}", done.stderr);
    assert!(done.stderr.contains(words), "{:?} is not in: {}", words, done.stderr);
    assert!(!done.stdout.contains("serves on"), "{}", done.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn x9_a_port_that_is_taken_is_told_before_the_database_is_touched() {
    let place = Place::sqlite();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = taken.local_addr().expect("it has an address").to_string();
    let done = refused(place.folder(), &["--listen", &address, "--database", &place.url]).await;
    assert_one_sentence(&done, &format!("{address} is in use"));
    assert!(done.stderr.contains("another --listen"), "{}", done.stderr);
    let mail = ["--listen", "127.0.0.1:0", "--smtp-listen", &address, "--database", &place.url];
    assert_one_sentence(&refused(place.folder(), &mail).await, "another --smtp-listen");
    assert!(!place.path("journey.db").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn x9_a_postgresql_that_does_not_answer_is_told_by_its_address_and_without_its_password() {
    let place = Place::sqlite();
    // A port that is held and not listened on: nobody else can answer there.
    let held = TcpSocket::new_v4().expect("a socket");
    held.bind(([127, 0, 0, 1], 0).into()).expect("a port is free");
    let here = held.local_addr().expect("it has an address").to_string();
    for (host, words) in [(here.as_str(), here.as_str()), ("nowhere.invalid", "nowhere.invalid:5432")] {
        let url = format!("postgres://me:s3cret@{host}/jobs");
        let done = refused(place.folder(), &["--listen", "127.0.0.1:0", "--database", &url]).await;
        assert_one_sentence(&done, words);
        assert!(!done.stderr.contains("s3cret"), "{done:?}");
        if host == here {
            assert!(done.stderr.contains("refused"), "with the cause: {done:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn x2_a_postgresql_that_may_lose_acknowledged_work_is_refused_unless_that_is_accepted() {
    on_postgres(async |place| {
        place.sql_beside("alter database $database set synchronous_commit = off").await;
        let args = ["--listen", "127.0.0.1:0", "--database", &place.url];
        let done = refused(place.folder(), &args).await;
        assert_one_sentence(&done, "synchronous_commit=off");
        assert!(done.stderr.contains("--unsafe"), "what to do is told: {done:?}");
        let mut server = Server::with(place.folder(), &[&args[..], &["--unsafe"]].concat(), &[]).await;
        push(&server.client(), "q", json!(1)).await;
        assert_eq!(server.program.terminate().await, Some(0), "{}", server.program.stderr());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn q9_a_place_for_artifacts_that_it_does_not_know_is_refused() {
    let place = Place::sqlite();
    let args = ["--listen", "127.0.0.1:0", "--database", &place.url, "--artifacts", "gs://bucket/prefix"];
    assert_one_sentence(&refused(place.folder(), &args).await, "s3://BUCKET/PREFIX");
}

#[tokio::test(flavor = "multi_thread")]
async fn x7_without_tokens_it_listens_on_loopback_only() {
    let place = Place::sqlite();
    for address in ["0.0.0.0:0", "[::]:0"] {
        let done = refused(place.folder(), &["--listen", address, "--database", &place.url]).await;
        assert_one_sentence(&done, "loopback only");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn x7_another_host_or_origin_is_refused() {
    let place = Place::sqlite();
    let server = Server::start(&place).await;
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
        let answer = request.send().await.expect("an answer comes");
        assert_eq!(answer.status(), 403);
        assert_eq!(answer.headers()["content-type"], "application/problem+json");
        let problem: Value = answer.json().await.expect("a problem document");
        assert_eq!(problem["code"], "host_not_allowed");
    }
    let allowed = post().header("Host", "localhost:80").send().await.expect("an answer comes");
    assert_eq!(allowed.status(), 202);
    let jobs = server.client().jobs(&JobFilter::default()).await.expect("jobs are listed");
    assert_eq!(jobs.items.len(), 1, "what was refused did nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn x11_the_demo_runs_at_once_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let temporary = folder.path().join("tmp");
    std::fs::create_dir(&temporary).expect("the folder takes folders");
    let env = [("TMPDIR", temporary.to_str().expect("the path is text"))];
    let mut server = Server::with(folder.path(), &["--demo", "--listen", "127.0.0.1:0"], &env).await;
    let started = Instant::now();
    assert_eq!(std::fs::read_dir(&temporary).expect("it is there").count(), 1, "its database is temporary");
    let http = http();
    for (path, kind) in [("/", "text/html"), ("/readyz", "application/json"), ("/healthz", "application/json")] {
        let answer = http.get(format!("{}{path}", server.url)).send().await.expect("an answer comes");
        assert_eq!(answer.status(), 200, "{path}");
        let content_type = answer.headers()["content-type"].to_str().expect("it is text");
        assert!(content_type.starts_with(kind), "{path}: {content_type}");
    }
    let client = server.client();
    let succeeded = JobFilter { state: Some("succeeded".into()), ..JobFilter::default() };
    until("a job of the demo has succeeded", async || {
        let jobs = client.jobs(&succeeded).await.expect("jobs are listed");
        (!jobs.items.is_empty()).then_some(())
    })
    .await;
    println!("a job succeeded after {:?}", started.elapsed());
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
    assert_eq!(server.program.terminate().await, Some(0), "{}", server.program.stderr());
    assert_eq!(std::fs::read_dir(&temporary).expect("it is there").count(), 0, "its database is gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn x9_settings_come_from_flags_then_the_environment_then_a_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let database = |name: &str| format!("sqlite:{}", folder.path().join(name).display());
    let file = folder.path().join("windlass.toml");
    let text = format!("listen = \"127.0.0.1:0\"\ndatabase = \"{}\"\npayload_bytes = 20\n", database("file.db"));
    std::fs::write(&file, text).expect("the folder takes files");
    let config = ["--config", file.to_str().expect("the path is text")];
    let exists = |name: &str| folder.path().join(name).exists();

    let server = Server::with(folder.path(), &config, &[]).await;
    assert!(exists("file.db"));
    let long = server.client().enqueue(&crate::support::job("q", json!("longer than twenty bytes"))).await;
    assert!(matches!(long.unwrap_err().status(), Some(413 | 422)), "the file's payload_bytes counts");
    push(&server.client(), "q", json!("short")).await;
    drop(server);

    let env = [("WINDLASS_DATABASE", database("environment.db"))];
    let env = env.each_ref().map(|(name, value)| (*name, value.as_str()));
    drop(Server::with(folder.path(), &config, &env).await);
    assert!(exists("environment.db"));

    let flag = database("flag.db");
    drop(Server::with(folder.path(), &[&config[..], &["--database", &flag]].concat(), &env).await);
    assert!(exists("flag.db"));

    std::fs::write(&file, "lisen = \"127.0.0.1:0\"").expect("the folder takes files");
    let done = refused(folder.path(), &config).await;
    assert_eq!(done.code, Some(2), "{done:?}");
    assert!(done.stderr.contains("`lisen` is not a setting"), "{}", done.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn x9_a_newer_schema_is_refused_with_a_clear_message() {
    on_both(async |place| {
        let mut server = Server::start(&place).await;
        assert_eq!(server.program.terminate().await, Some(0));
        let (table, now) = match place.is_postgres() {
            true => ("windlass.schema_migrations", "now()"),
            false => ("schema_migrations", "1"),
        };
        let insert =
            format!("insert into {table} (version, name, checksum, applied_at) values (999, 'later', '', {now})");
        place.sql(&insert).await;
        let done = refused(place.folder(), &["--listen", "127.0.0.1:0", "--database", &place.url]).await;
        assert_one_sentence(&done, "schema version 999");
        assert!(done.stderr.contains("newer windlass"), "{}", done.stderr);
        let commands: [&[&str]; 5] =
            [&["migrate", "up"], &["verify"], &["doctor"], &["tenant", "list"], &["token", "list"]];
        for command in commands {
            let done = windlass(&[command, &["--database", &place.url]].concat()).await;
            assert_eq!(done.code, Some(1), "{command:?} {done:?}");
            assert!(format!("{}{}", done.stdout, done.stderr).contains("newer windlass"), "{command:?} {done:?}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn q7_a_graceful_stop_answers_open_long_polls_at_once() {
    on_both(async |place| {
        // That a poll is open cannot be seen from outside: a stop that came before it says nothing, and the next one counts.
        until("a stop meets open polls and answers them", async || stopped_with_open_polls(&place).await).await;
    })
    .await;
}

/// Stops a server while a claim and a look at a job wait there. `None` when one of them was not answered, which says nothing
/// when it was not open yet, or when a busy machine took longer than the ten seconds that requests under way have.
async fn stopped_with_open_polls(place: &Place) -> Option<()> {
    let mut server = Server::start(place).await;
    let client = server.client();
    let (queues, lease_s) = (vec!["empty".into()], Some(3_600));
    let request = WorkerRequest { name: "w".into(), queues, lease_s, ..WorkerRequest::default() };
    let worker = client.register_worker(&request).await.expect("the worker is registered").id;
    let id = push(&client, "q", json!(1)).await;
    let claim = ClaimRequest { max: 1, wait_s: Some(50.0), ..ClaimRequest::default() };
    let (claimed, job, code) =
        tokio::join!(client.claim(worker, &claim), client.job_when_ended(id, Duration::from_secs(50)), async {
            // Asked after the others, and often enough that by then they are most likely open.
            for _ in 0..50 {
                client.job(id).await.expect("the job is there");
            }
            server.program.terminate().await
        });
    assert_eq!(code, Some(0));
    let (claimed, job) = (answered(claimed)?, answered(job)?);
    assert_eq!(claimed.jobs.len(), 0);
    assert_eq!(job.state, "queued");
    // The stop waits for requests under way; it did not have to.
    (!server.program.stderr().contains("still under way")).then_some(())
}

fn answered<T>(answer: Result<T, ClientError>) -> Option<T> {
    match answer {
        Ok(answer) => Some(answer),
        Err(error) if is_passing(&error) => None,
        Err(error) => panic!("refused: {error}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn x11_the_metrics_are_what_prometheus_reads() {
    on_both(async |place| {
        let server = Server::start(&place).await;
        let client = server.client();
        let _work = Work::start(&place, &server, "q", &[], "cat");
        ended(&client, push(&client, "q", json!(1)).await).await;
        let answer = http().get(format!("{}/metrics", server.url)).send().await.expect("an answer comes");
        assert_eq!(answer.status(), 200);
        let text = answer.text().await.expect("it is whole");
        assert!(text.contains("windlass_jobs_claimed_total 1"), "{text}");
        let mut promtool = Command::new("promtool");
        promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut promtool = promtool.spawn().expect("promtool is missing: install the Debian package prometheus");
        let mut stdin = promtool.stdin.take().expect("it was asked for");
        stdin.write_all(text.as_bytes()).expect("promtool reads");
        drop(stdin);
        let output = promtool.wait_with_output().expect("promtool ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}\n{text}");
    })
    .await;
}

/// `promtool check rules` on a file.
fn check_rules(file: &std::path::Path) {
    let checked = Command::new("promtool").args(["check", "rules"]).arg(file).output();
    let checked = checked.expect("promtool is missing: install the Debian package prometheus");
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

#[test]
fn s5_the_alert_rules_and_every_expression_of_the_dashboard_are_good() {
    let deploy = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    check_rules(&deploy.join("prometheus/windlass-rules.yml"));
    let dashboard = std::fs::read(deploy.join("grafana/windlass.json")).expect("the dashboard is there");
    let dashboard: Value = serde_json::from_slice(&dashboard).expect("the dashboard is JSON");
    let panels = dashboard["panels"].as_array().expect("it has panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().expect("each shows something"));
    // As rules, so that promtool reads them; JSON is YAML too.
    let rules: Vec<Value> = targets
        .enumerate()
        .map(|(n, target)| json!({"record": format!("panel:{n}"), "expr": target["expr"]}))
        .collect();
    assert!(rules.len() >= 6);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("dashboard.yml");
    std::fs::write(&file, json!({"groups": [{"name": "dashboard", "rules": rules}]}).to_string()).expect("writes");
    check_rules(&file);
}
