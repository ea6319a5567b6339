//! Several nodes on one PostgreSQL database, and the refusal of a second one on a SQLite file.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use client::wire::{ClaimRequest, HeartbeatRequest, WorkerRequest, code};
use client::{Client, HandlerError, JobContext, JobFilter, Worker};
use serde_json::{Value, json};
use store::db::migrate::{MIGRATIONS, Migration, MigrationScript};
use store::{DatabaseUrl, Store, StoreOptions};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::support::{
    Serve, Server, eventually, failed_start, http, in_state, job, on_both, on_postgres, on_sqlite, push, windlass,
};

const RACERS: usize = 64;
/// Duration of a long poll. A response well before its end was caused by a notification.
const WAIT_S: f64 = 60.0;
const WELL_BEFORE: Duration = Duration::from_secs(40);
/// Lease of a worker that the test drives and that sends few heartbeats.
const LEASE_S: i64 = 600;

/// Requirement Q3.
#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_concurrent_requests_with_one_idempotency_key_create_one_job() {
    on_both(async |fixture| {
        let mut nodes = vec![Server::start(&fixture).await];
        if fixture.is_postgres() {
            nodes.push(Server::start(&fixture).await);
        }
        let http = http();
        for round in 0..3 {
            let body = serde_json::to_string(&job("race", json!({ "round": round }))).expect("a job is JSON");
            let post = |node: usize, body: String| {
                let request = http.post(format!("{}/api/v1/jobs", nodes[node].url)).body(body);
                request.header("Content-Type", "application/json").header("Idempotency-Key", format!("key-{round}"))
            };
            let mut racers = JoinSet::new();
            for racer in 0..RACERS {
                let request = post(racer % nodes.len(), body.clone());
                racers.spawn(async move {
                    let response = request.send().await.expect("the server responds");
                    (response.status().as_u16(), response.text().await.expect("the body is complete"))
                });
            }
            let responses = racers.join_all().await;
            let created = responses.iter().filter(|(status, _)| *status == 202).count();
            let repeated = responses.iter().filter(|(status, _)| *status == 200).count();
            assert_eq!((created, repeated), (1, RACERS - 1), "{responses:?}");
            let bodies: HashSet<_> = responses.iter().map(|(_, body)| body).collect();
            assert_eq!(bodies.len(), 1, "all responses have the same body: {bodies:?}");

            let other = post(0, body.replace("round", "another")).send().await.expect("the server responds");
            assert_eq!(other.status(), 422);
            let problem: Value = other.json().await.expect("a problem document");
            assert_eq!(problem["code"], code::IDEMPOTENCY_KEY_REUSED);
        }
        let filter = JobFilter { queue: Some("race".into()), ..JobFilter::default() };
        assert_eq!(nodes[0].client().jobs(&filter).await.expect("jobs are listed").items.len(), 3);
    })
    .await;
}

async fn worker(client: &Client) -> uuid::Uuid {
    let (name, queues) = ("test".into(), vec!["q".into()]);
    let request = WorkerRequest { name, queues, lease_s: Some(LEASE_S), ..WorkerRequest::default() };
    client.register_worker(&request).await.expect("the worker is registered").id
}

/// Requirement X8.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_waiting_on_one_node_gets_a_job_enqueued_on_another() {
    on_postgres(async |fixture| {
        let (here, there) = (Server::start(&fixture).await, Server::start(&fixture).await);
        let (producer, client) = (here.client(), there.client());
        let worker = worker(&client).await;
        for round in 0..5 {
            let claim = ClaimRequest { max: 1, wait_s: Some(WAIT_S), ..ClaimRequest::default() };
            let (claimed, (id, pushed)) = tokio::join!(client.claim(worker, &claim), async {
                // Sent after the claim on the same connection pool: when it is answered, the claim is open.
                client.heartbeat(worker, &HeartbeatRequest::default()).await.expect("the worker is registered");
                (push(&producer, "q", json!(round)).await, Instant::now())
            });
            let jobs = claimed.expect("the claim succeeds").jobs;
            assert_eq!(jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [id]);
            println!("received after {:?}", pushed.elapsed());
            assert!(pushed.elapsed() < WELL_BEFORE, "{:?}", pushed.elapsed());
        }
    })
    .await;
}

/// Requirement Q11.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_on_one_node_reaches_a_heartbeat_on_another() {
    on_both(async |fixture| {
        let here = Server::start(&fixture).await;
        let there = if fixture.is_postgres() { Some(Server::start(&fixture).await) } else { None };
        let (canceler, client) = (here.client(), there.as_ref().unwrap_or(&here).client());
        let worker = worker(&client).await;
        let id = push(&client, "q", json!(1)).await;
        let claim = ClaimRequest { max: 1, wait_s: Some(WAIT_S), ..ClaimRequest::default() };
        let claimed = client.claim(worker, &claim).await;
        assert_eq!(claimed.expect("the claim succeeds").jobs.len(), 1);
        let beat = HeartbeatRequest { wait_s: Some(WAIT_S), ..HeartbeatRequest::default() };
        let (response, canceled) = tokio::join!(client.heartbeat(worker, &beat), async {
            eventually("the job is running", async || {
                let job = canceler.job(id).await.expect("the job exists");
                (job.state == "working").then_some(())
            })
            .await;
            canceler.cancel(id).await.expect("the job is canceled");
            Instant::now()
        });
        assert_eq!(response.expect("the heartbeat succeeds").cancel, [id]);
        println!("received after {:?}", canceled.elapsed());
        assert!(canceled.elapsed() < WELL_BEFORE, "{:?}", canceled.elapsed());
    })
    .await;
}

/// Requirement X8.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_server_on_the_same_sqlite_file_is_refused() {
    on_sqlite(async |fixture| {
        let first = Server::start(&fixture).await;
        let second = failed_start(fixture.folder(), &["--listen", "127.0.0.1:0", "--database", &fixture.url]).await;
        assert_eq!(second.code, Some(1), "{second:?}");
        assert_eq!(second.stderr.lines().count(), 1, "one sentence: {}", second.stderr);
        assert!(second.stderr.contains("journey.db is in use by another server"), "{}", second.stderr);
        assert!(!second.stdout.contains("serves on"));
        push(&first.client(), "q", json!("the first server still serves")).await;
    })
    .await;
}

/// Requirement Q9.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_a_separate_artifact_folder_warns_and_reports_missing_blobs() {
    on_postgres(async |fixture| {
        let elsewhere = fixture.path("elsewhere");
        let other = Serve::on(&fixture).env("WINDLASS_ARTIFACTS", &elsewhere).start();
        let nodes = [Server::start(&fixture).await, other.await];
        // Either node may have stored its folder first.
        eventually("the other node warns", async || {
            let warns = |node: &Server| node.program.stderr().contains("is not the folder that the other nodes use");
            nodes.iter().any(warns).then_some(())
        })
        .await;
        let id = push(&nodes[0].client(), "q", json!(1)).await;
        let at = |node: &Server| format!("{}/api/v1/jobs/{id}/artifacts/a", node.url);
        let stored = http().put(at(&nodes[0])).body(vec![0u8; 100_000]).send().await.expect("the server responds");
        assert_eq!(stored.status(), 201);
        let missing = http().get(at(&nodes[1])).send().await.expect("the server responds");
        assert_eq!(missing.status(), 503);
        let problem: Value = missing.json().await.expect("a problem document");
        assert_eq!(problem["code"], code::BLOB_MISSING);
        let mut advice = String::new();
        for folder in [fixture.path("data/artifacts"), elsewhere.clone()] {
            let folder = folder.to_str().expect("a path");
            let doctor = ["--output", "json", "doctor", "--database", &fixture.url, "--artifacts", folder];
            advice += &windlass(&doctor).await.stdout;
        }
        assert_eq!(advice.matches("is not the folder").count(), 1, "{advice}");
    })
    .await;
}

/// A migration of a later version, as an upgrade without downtime allows: it only adds to the schema.
const LATER_UP: &str = "
    alter table jobs add column later text;
    alter table ended add column later text;
    alter table history add column later bigint not null default 7;
    alter table queues add column later jsonb;
    alter table workers add column later text;
    create index jobs_later on jobs (later) where later is not null;
    create table later (id bigint primary key)";

/// The migrations of the later version.
fn later_migrations() -> &'static [Migration] {
    let script = MigrationScript { up: LATER_UP, down: "" };
    let newest = MIGRATIONS.last().expect("there are migrations").version;
    let later = Migration { version: newest + 1, name: "later", sqlite: script, postgres: script };
    MIGRATIONS.iter().copied().chain([later]).collect::<Vec<_>>().leak()
}

/// Requirement X9.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_serves_while_a_newer_node_migrates_the_schema() {
    on_postgres(async |fixture| {
        let server = Server::start(&fixture).await;
        let client = server.client();
        let handler = async |_: JobContext| Ok::<_, HandlerError>(());
        let worker = Worker::builder(client.clone()).queue("q").concurrency(4).handle("journey", handler).build();
        let (worker, stop) = (worker.expect("the worker is complete"), CancellationToken::new());
        let mut running = JoinSet::new();
        {
            let stop = stop.clone();
            running.spawn(async move { worker.run(stop).await });
        }
        let run_jobs = async || {
            let mut ids = Vec::new();
            for number in 0..20 {
                ids.push(push(&client, "q", json!(number)).await);
            }
            for id in ids {
                in_state(&client, id, &["succeeded"]).await;
            }
        };
        // Prepare every statement and make every plan before the migration.
        run_jobs().await;
        let held = self::worker(&client).await;
        push(&client, "held", json!(1)).await;
        let url = DatabaseUrl::parse(&fixture.url).expect("the URL is valid");
        let newer = Store::open(&url, StoreOptions::default()).await.expect("the database opens");
        let (migrated, ()) = tokio::join!(newer.migrate_up_through(later_migrations()), run_jobs());
        assert_eq!(migrated.expect("the migration succeeds").len(), 1);
        run_jobs().await;
        client.heartbeat(held, &HeartbeatRequest::default()).await.expect("the worker is registered");
        let jobs = client.jobs(&JobFilter { limit: Some(100), ..JobFilter::default() }).await.expect("jobs are listed");
        assert_eq!(jobs.items.len(), 61);
        stop.cancel();
        for ended in running.join_all().await {
            assert_eq!(ended.expect("the server accepts the worker").done, 60);
        }
        fixture.sql("delete from windlass.schema_migrations where name = 'later'").await;
        fixture.verify().await;
    })
    .await;
}
