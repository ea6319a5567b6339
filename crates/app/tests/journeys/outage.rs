//! The database full, read-only, gone and back again: 503, no false success, and work goes on by itself (X12).

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
    Cluster, Load, Place, Proxy, Serve, Server, Work, ended, events, http, insist, job, on_postgres, on_sqlite, push,
    until,
};

/// Refusals in a row that show that it is no accident.
const REFUSALS: usize = 5;

fn large_job(number: usize) -> JobRequest {
    let payload = json!({ "number": number, "padding": "x".repeat(8 << 10) });
    let payload: Box<RawValue> = serde_json::value::to_raw_value(&payload).expect("JSON is JSON");
    JobRequest { payload: Some(payload), ..job("q", Value::Null) }
}

/// Enqueues until the database takes no more, and gives what it acknowledged.
async fn fill(client: &Client) -> Vec<Uuid> {
    let mut acknowledged = Vec::new();
    let mut refusals = 0;
    for number in 0..20_000 {
        match client.enqueue(&large_job(number)).await {
            Ok(accepted) => {
                // Room that the engine gave back counts for nothing; only a row of refusals does.
                refusals = 0;
                acknowledged.push(accepted.id);
            }
            Err(error) => {
                assert_unavailable(&error);
                refusals += 1;
            }
        }
        if refusals == REFUSALS {
            return acknowledged;
        }
    }
    panic!("the database never was full");
}

fn assert_unavailable(error: &ClientError) {
    assert_eq!((error.status(), error.code()), (Some(503), Some(code::UNAVAILABLE)), "{error}");
}

/// The answer as it is on the wire: a problem document, and word of when to come again. Gives what was acknowledged first:
/// what was refused together with the engine's own work may fit alone.
async fn assert_problem_document(server: &Server) -> Vec<Uuid> {
    let (http, body) = (http(), serde_json::to_string(&large_job(0)).expect("a job is JSON"));
    let mut acknowledged = Vec::new();
    let answer = until("a job is refused", async || {
        let request = http.post(format!("{}/api/v1/jobs", server.url)).header("Content-Type", "application/json");
        let answer = request.body(body.clone()).send().await.expect("an answer comes");
        if answer.status() != 202 {
            return Some(answer);
        }
        acknowledged.push(answer.json::<JobAccepted>().await.expect("it tells of the job").id);
        None
    })
    .await;
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.headers()["content-type"], "application/problem+json");
    assert!(answer.headers().contains_key("retry-after"));
    let problem: Value = answer.json().await.expect("a problem document");
    assert_eq!((&problem["status"], &problem["code"]), (&json!(503), &json!("unavailable")));
    acknowledged
}

/// Everything that was acknowledged is there and gets done, and nothing else is there.
async fn assert_all_done(place: &Place, server: Server, acknowledged: Vec<Uuid>) {
    let client = server.client();
    let counts = insist(async || client.queue("q").await).await.counts;
    assert_eq!(counts.queued as usize, acknowledged.len(), "what was refused is not there: {counts:?}");
    let work = Work::start(place, &server, "q", &["--concurrency", "4"], "cat > /dev/null");
    for id in &acknowledged {
        let job = until("the job has ended", async || {
            // That a connection to the database was closed may be news to whoever uses it next.
            let job = insist(async || client.job(*id).await).await;
            ["succeeded", "failed", "canceled"].contains(&job.state.as_str()).then_some(job)
        })
        .await;
        assert_eq!(job.state, "succeeded");
    }
    println!("acknowledged={} lost=0", acknowledged.len());
    drop((work, server));
    place.verify().await;
}

/// A small disk of its own for the database. Making one takes root, or a user with sudo.
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
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "a small disk needs root or a user with sudo: {told}");
        Self { folder }
    }

    /// Leaves room for this many bytes.
    fn fill_up_to(&self, left: u64) {
        let mut filler = File::create(self.filler()).expect("the disk takes files");
        let full = std::io::copy(&mut std::io::repeat(0).take((Self::MIB as u64) << 20), &mut filler);
        assert!(full.is_err(), "the disk is small");
        let size = filler.metadata().expect("it is there").len();
        filler.set_len(size - left).expect("a file can shrink");
        filler.flush().expect("nothing is left to write");
    }

    fn free(&self) {
        std::fs::remove_file(self.filler()).expect("the filler is there");
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
        // Lazily: a server that a failed test leaves behind for a moment must not keep it.
        let _gone = as_root("umount").arg("--lazy").arg(self.folder.path()).status();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn x12_a_full_disk_gives_503_and_work_goes_on_when_there_is_room_again() {
    let disk = Disk::mount();
    let place = Place::sqlite_in(disk.folder.path());
    let server = Server::start(&place).await;
    let client = server.client();
    let mut acknowledged = vec![push(&client, "q", json!("before")).await];
    disk.fill_up_to(512 << 10);
    acknowledged.extend(fill(&client).await);
    acknowledged.extend(assert_problem_document(&server).await);
    assert_eq!(client.job(acknowledged[0]).await.expect("reading goes on").state, "queued");
    disk.free();
    acknowledged.push(insist(async || client.enqueue_once("after", &large_job(0)).await).await.id);
    assert_all_done(&place, server, acknowledged).await;
}

/// How large a file of the server may become.
fn limit_file_size(server: &Server, bytes: Option<u64>) {
    let limit = Rlimit { current: bytes, maximum: None };
    prlimit(Some(server.program.id()), Resource::Fsize, limit).expect("a limit without an upper bound can be moved");
}

fn size(path: &Path) -> u64 {
    std::fs::metadata(path).map(|file| file.len()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn x12_a_file_that_may_not_grow_gives_503_and_work_goes_on_when_it_may() {
    on_sqlite(async |place| {
        // Past the limit the kernel sends a signal that would end the process; ignored, the write fails instead.
        let server = Serve::ignoring(&place, "XFSZ").start().await;
        let client = server.client();
        let mut acknowledged = vec![push(&client, "q", json!("before")).await];
        let largest = size(&place.path("journey.db")).max(size(&place.path("journey.db-wal")));
        limit_file_size(&server, Some(largest + (512 << 10)));
        acknowledged.extend(fill(&client).await);
        acknowledged.extend(assert_problem_document(&server).await);
        assert_eq!(client.job(acknowledged[0]).await.expect("reading goes on").state, "queued");
        limit_file_size(&server, None);
        acknowledged.push(insist(async || client.enqueue_once("after", &large_job(0)).await).await.id);
        assert_all_done(&place, server, acknowledged).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x12_a_read_only_database_gives_503_and_work_goes_on_when_it_is_writable() {
    on_postgres(async |place| {
        let server = Server::start(&place).await;
        let client = server.client();
        let mut acknowledged = vec![push(&client, "q", json!("before")).await];
        // The setting holds for new connections.
        let anew = "select pg_terminate_backend(pid) from pg_stat_activity where datname = '$database'";
        place.sql_beside("alter database $database set default_transaction_read_only = on").await;
        place.sql_beside(anew).await;
        // What is asked on a connection that ends just then has no certain answer; after a read there is a new one.
        let read = insist(async || client.job(acknowledged[0]).await).await;
        assert_eq!(read.state, "queued", "reading goes on");
        acknowledged.extend(fill(&client).await);
        acknowledged.extend(assert_problem_document(&server).await);
        let ready = async |status: u16| {
            let answer = http().get(format!("{}/readyz", server.url)).send().await.ok()?;
            (answer.status() == status).then_some(())
        };
        until("it says that it is not ready", async || ready(503).await).await;
        place.sql_beside("alter database $database reset default_transaction_read_only").await;
        place.sql_beside(anew).await;
        acknowledged.push(insist(async || client.enqueue_once("after", &large_job(0)).await).await.id);
        until("it is ready again", async || ready(200).await).await;
        assert_all_done(&place, server, acknowledged).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x12_a_claim_whose_commit_got_no_answer_is_given_back_and_done() {
    on_postgres(async |place| {
        const MARKER: &str = "committed-and-never-told";
        let proxy = Proxy::start(&place.url, MARKER).await;
        let server = Serve::on(&place).env("WINDLASS_DATABASE", &proxy.url).start().await;
        let client = server.client();
        let work = Work::start(&place, &server, "q", &[], "cat");
        let id = push(&client, "q", json!(MARKER)).await;
        until("the answer to the claim's commit is lost", async || proxy.has_broken().then_some(())).await;
        // The worker knows nothing of the job and goes on heartbeating: nobody else would ever get it.
        let job = ended(&client, id).await;
        assert_eq!((job.state.as_str(), job.attempt), ("succeeded", 1), "{:?}", events(&client, id).await);
        assert!(events(&client, id).await.contains(&"released".to_owned()));
        drop((work, server));
        place.verify().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x11_figures_of_the_process_are_told_while_the_database_is_away() {
    let mut cluster = Cluster::start().await;
    let place = Place::on_server(&cluster.url()).await;
    let server = Server::start(&place).await;
    let scrape = async || {
        let answer = http().get(format!("{}/metrics", server.url)).send().await.expect("an answer comes");
        (answer.status().as_u16(), answer.text().await.expect("text"))
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
    assert!(!figures.contains("windlass_jobs{"), "what only the database knows is left out: {figures}");
    cluster.run().await;
    until("the database is seen again", async || scrape().await.1.contains("windlass_database_up 1").then_some(()))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x12_a_postgres_that_crashes_under_load_loses_nothing_and_is_served_again() {
    const CRASHES: usize = 3;
    let mut cluster = Cluster::start().await;
    let place = Place::on_server(&cluster.url()).await;
    let server = Server::start(&place).await;
    let load = Load::start(server.client());
    for _ in 0..CRASHES {
        load.more(60).await;
        cluster.crash().await;
        let down = server.client().enqueue(&job("q", json!("nobody keeps this"))).await;
        // A transaction that was open when the crash came may have taken it in: then nobody knows of its commit.
        assert_eq!(down.as_ref().unwrap_err().status(), Some(503), "{down:?}");
        cluster.run().await;
        let back = Instant::now();
        let acknowledged = load.acknowledged();
        until("jobs are accepted again", async || (load.acknowledged() > acknowledged).then_some(())).await;
        println!("served again {:?} after PostgreSQL came back", back.elapsed());
        assert!(back.elapsed() < Duration::from_secs(60), "{:?}", back.elapsed());
    }
    load.more(60).await;
    println!("crashes={CRASHES} {}", load.finish().await);
    drop(server);
    place.verify().await;
}
