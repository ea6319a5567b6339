//! A database that is full, read-only, crashed, or restored: 503, no false success, and work resumes without
//! intervention.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use client::wire::{JobAccepted, JobRequest, RawValue, code};
use client::{Client, ClientError};
use rustix::process::{Resource, Rlimit, prlimit};
use serde_json::{Value, json};
use tempfile::TempDir;
use uuid::Uuid;

use crate::support::{
    Cluster, Fixture, Load, LostCommitProxy, Serve, Server, Work, ended, events, eventually, http, job, on_postgres,
    on_sqlite, push, retry_while_unavailable,
};

/// Rejections in a row after which the database counts as full.
const REJECTIONS: usize = 5;

fn large_job(number: usize) -> JobRequest {
    let payload = json!({ "number": number, "padding": "x".repeat(8 << 10) });
    let payload: Box<RawValue> = serde_json::value::to_raw_value(&payload).expect("a value is JSON");
    JobRequest { payload: Some(payload), ..job("q", Value::Null) }
}

/// Enqueues until the database accepts no more, and returns the acknowledged jobs.
async fn fill(client: &Client) -> Vec<Uuid> {
    let mut acknowledged = Vec::new();
    let mut rejections = 0;
    for number in 0..20_000 {
        match client.enqueue(&large_job(number)).await {
            Ok(accepted) => {
                // The engine can free space in between. Only rejections in a row count.
                rejections = 0;
                acknowledged.push(accepted.id);
            }
            Err(error) => {
                assert_unavailable(&error);
                rejections += 1;
            }
        }
        if rejections == REJECTIONS {
            return acknowledged;
        }
    }
    panic!("the database never became full");
}

fn assert_unavailable(error: &ClientError) {
    assert_eq!((error.status(), error.code()), (Some(503), Some(code::UNAVAILABLE)), "{error}");
}

/// Asserts that a rejection is a problem document with `Retry-After`. Returns the jobs that were acknowledged first: a
/// request rejected together with the engine's own work may succeed alone.
async fn assert_problem_document(server: &Server) -> Vec<Uuid> {
    let (http, body) = (http(), serde_json::to_string(&large_job(0)).expect("a job is JSON"));
    let mut acknowledged = Vec::new();
    let response = eventually("a job is rejected", async || {
        let request = http.post(format!("{}/api/v1/jobs", server.url)).header("Content-Type", "application/json");
        let response = request.body(body.clone()).send().await.expect("the server responds");
        if response.status() != 202 {
            return Some(response);
        }
        acknowledged.push(response.json::<JobAccepted>().await.expect("the response contains the job").id);
        None
    })
    .await;
    assert_eq!(response.status(), 503);
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    assert!(response.headers().contains_key("retry-after"));
    let problem: Value = response.json().await.expect("a problem document");
    assert_eq!((&problem["status"], &problem["code"]), (&json!(503), &json!("unavailable")));
    acknowledged
}

/// Asserts that exactly the acknowledged jobs exist, and that a worker completes them.
async fn assert_all_done(fixture: &Fixture, server: Server, acknowledged: Vec<Uuid>) {
    let client = server.client();
    let counts = retry_while_unavailable(|| client.queue("q")).await.counts;
    assert_eq!(counts.queued as usize, acknowledged.len(), "rejected jobs do not exist: {counts:?}");
    let work = Work::start(fixture, &server, "q", &["--concurrency", "4"], "cat > /dev/null");
    for id in &acknowledged {
        // Tolerates a 503: the pool detects a closed database connection only when it uses it.
        assert_eq!(ended(&client, *id).await.state, "succeeded");
    }
    println!("acknowledged={} lost=0", acknowledged.len());
    drop((work, server));
    fixture.verify().await;
}

/// A small disk for the database. Mounting it requires root or a user with sudo.
struct Disk {
    folder: TempDir,
}

impl Disk {
    const MIB: usize = 24;

    fn mount() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let options = format!("size={}m,mode=1777", Self::MIB);
        let mut mount = as_root("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(folder.path());
        let output = mount.output().expect("mount (or sudo) can be started");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "a small disk requires root or a user with sudo: {stderr}");
        Self { folder }
    }

    /// Fills the disk except for this many bytes.
    fn fill_up_to(&self, free: u64) {
        let mut filler = File::create(self.filler()).expect("creates the file");
        let full = std::io::copy(&mut std::io::repeat(0).take((Self::MIB as u64) << 20), &mut filler);
        assert!(full.is_err(), "the disk is full");
        let size = filler.metadata().expect("the file exists").len();
        filler.set_len(size - free).expect("shrinks the file");
        filler.flush().expect("nothing remains to be written");
    }

    fn free(&self) {
        std::fs::remove_file(self.filler()).expect("removes the file");
    }

    fn filler(&self) -> PathBuf {
        self.folder.path().join("filler")
    }
}

fn as_root(program: &str) -> Command {
    if rustix::process::geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("sudo");
    command.args(["--non-interactive", program]);
    command
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazy, because a server of a failed test may still use the disk for a moment.
        let _unmounted = as_root("umount").arg("--lazy").arg(self.folder.path()).status();
    }
}

/// Requirement X12.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_returns_503_and_work_resumes_with_free_space() {
    let disk = Disk::mount();
    let fixture = Fixture::sqlite_in(disk.folder.path());
    let server = Server::start(&fixture).await;
    let client = server.client();
    let mut acknowledged = vec![push(&client, "q", json!("before")).await];
    disk.fill_up_to(512 << 10);
    acknowledged.extend(fill(&client).await);
    acknowledged.extend(assert_problem_document(&server).await);
    assert_eq!(client.job(acknowledged[0]).await.expect("reads succeed").state, "queued");
    disk.free();
    let after = retry_while_unavailable(async || client.enqueue_idempotent("after", &large_job(0)).await).await;
    acknowledged.push(after.id);
    assert_all_done(&fixture, server, acknowledged).await;
}

/// Limits the size of files that the server writes.
fn limit_file_size(server: &Server, bytes: Option<u64>) {
    let limit = Rlimit { current: bytes, maximum: None };
    prlimit(Some(server.program.id()), Resource::Fsize, limit).expect("the soft limit can be changed");
}

fn size(path: &Path) -> u64 {
    std::fs::metadata(path).map(|file| file.len()).unwrap_or_default()
}

/// Requirement X12.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_size_limit_returns_503_and_work_resumes_without_it() {
    on_sqlite(async |fixture| {
        // Beyond the limit the kernel sends SIGXFSZ, which ends the process. With the signal ignored, the write fails.
        let server = Serve::ignoring(&fixture, "XFSZ").start().await;
        let client = server.client();
        let mut acknowledged = vec![push(&client, "q", json!("before")).await];
        let largest = size(&fixture.path("journey.db")).max(size(&fixture.path("journey.db-wal")));
        limit_file_size(&server, Some(largest + (512 << 10)));
        acknowledged.extend(fill(&client).await);
        acknowledged.extend(assert_problem_document(&server).await);
        assert_eq!(client.job(acknowledged[0]).await.expect("reads succeed").state, "queued");
        limit_file_size(&server, None);
        let after = retry_while_unavailable(async || client.enqueue_idempotent("after", &large_job(0)).await).await;
        acknowledged.push(after.id);
        assert_all_done(&fixture, server, acknowledged).await;
    })
    .await;
}

/// Requirement X12.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_database_returns_503_and_work_resumes_when_it_is_writable() {
    on_postgres(async |fixture| {
        let server = Server::start(&fixture).await;
        let client = server.client();
        let mut acknowledged = vec![push(&client, "q", json!("before")).await];
        // The setting applies to new connections.
        let close_connections = "select pg_terminate_backend(pid) from pg_stat_activity where datname = '$database'";
        fixture.admin_sql("alter database $database set default_transaction_read_only = on").await;
        fixture.admin_sql(close_connections).await;
        // A write on a closing connection has an unknown outcome. After a read the pool uses new connections.
        let read = retry_while_unavailable(|| client.job(acknowledged[0])).await;
        assert_eq!(read.state, "queued", "reads succeed");
        acknowledged.extend(fill(&client).await);
        acknowledged.extend(assert_problem_document(&server).await);
        let ready = async |status: u16| {
            let response = http().get(format!("{}/readyz", server.url)).send().await.ok()?;
            (response.status() == status).then_some(())
        };
        eventually("the server is not ready", async || ready(503).await).await;
        fixture.admin_sql("alter database $database reset default_transaction_read_only").await;
        fixture.admin_sql(close_connections).await;
        let after = retry_while_unavailable(async || client.enqueue_idempotent("after", &large_job(0)).await).await;
        acknowledged.push(after.id);
        eventually("the server is ready again", async || ready(200).await).await;
        assert_all_done(&fixture, server, acknowledged).await;
    })
    .await;
}

/// Requirement X12.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_with_an_unknown_commit_outcome_is_released_and_completed() {
    on_postgres(async |fixture| {
        const MARKER: &str = "response-to-the-commit-is-lost";
        let proxy = LostCommitProxy::start(&fixture.url, MARKER).await;
        let server = Serve::on(&fixture).env("WINDLASS_DATABASE", &proxy.url).start().await;
        let client = server.client();
        let work = Work::start(&fixture, &server, "q", &[], "cat");
        let id = push(&client, "q", json!(MARKER)).await;
        eventually("the response to the claim's commit is lost", async || proxy.has_dropped_a_response().then_some(()))
            .await;
        // The worker never received the claim and still sends heartbeats, so its lease does not expire.
        let job = ended(&client, id).await;
        assert_eq!((job.state.as_str(), job.attempt), ("succeeded", 1), "{:?}", events(&client, id).await);
        assert!(events(&client, id).await.contains(&"released".to_owned()));
        drop((work, server));
        fixture.verify().await;
    })
    .await;
}

/// Requirement X11.
#[tokio::test(flavor = "multi_thread")]
async fn process_metrics_are_served_while_the_database_is_unavailable() {
    let mut cluster = Cluster::start().await;
    let fixture = Fixture::on_server(&cluster.url()).await;
    let server = Server::start(&fixture).await;
    let scrape = async || {
        let response = http().get(format!("{}/metrics", server.url)).send().await.expect("the server responds");
        (response.status().as_u16(), response.text().await.expect("the body is text"))
    };
    push(&server.client(), "q", json!(1)).await;
    let (status, figures) = scrape().await;
    assert_eq!(status, 200, "{figures}");
    assert!(figures.contains("windlass_database_up 1") && figures.contains("windlass_jobs{"), "{figures}");
    cluster.crash().await;
    let (status, figures) = scrape().await;
    assert_eq!(status, 200, "{figures}");
    assert!(
        figures.contains("windlass_database_up 0") && figures.contains("windlass_http_requests_total"),
        "{figures}"
    );
    assert!(!figures.contains("windlass_jobs{"), "metrics from the database are omitted: {figures}");
    cluster.run().await;
    eventually("the database is available again", async || {
        scrape().await.1.contains("windlass_database_up 1").then_some(())
    })
    .await;
}

/// Requirement X12.
#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_crash_under_load_loses_nothing_and_service_resumes() {
    const CRASHES: usize = 3;
    let mut cluster = Cluster::start().await;
    let fixture = Fixture::on_server(&cluster.url()).await;
    let server = Server::start(&fixture).await;
    let load = Load::start(server.client());
    for _ in 0..CRASHES {
        load.wait_for_jobs(60).await;
        cluster.crash().await;
        let down = server.client().enqueue(&job("q", json!("rejected"))).await;
        // The crash may have interrupted an open transaction of this request; its outcome is unknown, which is a 503
        // too.
        assert_eq!(down.as_ref().unwrap_err().status(), Some(503), "{down:?}");
        cluster.run().await;
        let back = Instant::now();
        let acknowledged = load.acknowledged();
        eventually("jobs are accepted again", async || (load.acknowledged() > acknowledged).then_some(())).await;
        println!("served again {:?} after PostgreSQL came back", back.elapsed());
        assert!(back.elapsed() < Duration::from_secs(60), "{:?}", back.elapsed());
    }
    load.wait_for_jobs(60).await;
    println!("crashes={CRASHES} {}", load.finish().await);
    drop(server);
    fixture.verify().await;
}
