//! Any number of nodes on one PostgreSQL database, and one on a SQLite file (X8, X9, Q3, Q11).

use std::collections::HashSet;
use std::time::{Duration, Instant};

use client::wire::{ClaimRequest, HeartbeatRequest, WorkerRequest, code};
use client::{Client, HandlerError, JobContext, JobFilter, Worker};
use serde_json::{Value, json};
use store::migrate::{MIGRATIONS, Migration, Script};
use store::{DatabaseUrl, Store, StoreOptions};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::support::{
    Serve, Server, http, in_state, job, on_both, on_postgres, on_sqlite, push, refused, until, windlass,
};

const RACERS: usize = 64;
/// How long a call may be held open. What is answered well before was not answered because the time was up.
const WAIT_S: f64 = 60.0;
const WELL_BEFORE: Duration = Duration::from_secs(40);
/// The lease of a worker that is led by hand and says only now and then that it lives.
const LEASE_S: i64 = 600;

#[tokio::test(flavor = "multi_thread")]
async fn q3_sixty_four_at_once_with_one_key_make_one_job() {
    on_both(async |place| {
        let mut nodes = vec![Server::start(&place).await];
        if place.is_postgres() {
            nodes.push(Server::start(&place).await);
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
                    let answer = request.send().await.expect("an answer comes");
                    (answer.status().as_u16(), answer.text().await.expect("it is whole"))
                });
            }
            let answers = racers.join_all().await;
            let fresh = answers.iter().filter(|(status, _)| *status == 202).count();
            let again = answers.iter().filter(|(status, _)| *status == 200).count();
            assert_eq!((fresh, again), (1, RACERS - 1), "{answers:?}");
            let bodies: HashSet<_> = answers.iter().map(|(_, body)| body).collect();
            assert_eq!(bodies.len(), 1, "the same answer for all: {bodies:?}");

            let other = post(0, body.replace("round", "another")).send().await.expect("an answer comes");
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
    let (name, queues) = ("by hand".into(), vec!["q".into()]);
    let request = WorkerRequest { name, queues, lease_s: Some(LEASE_S), ..WorkerRequest::default() };
    client.register_worker(&request).await.expect("the worker is registered").id
}

#[tokio::test(flavor = "multi_thread")]
async fn x8_a_claim_that_waits_on_one_node_gets_what_another_node_takes_in() {
    on_postgres(async |place| {
        let (here, there) = (Server::start(&place).await, Server::start(&place).await);
        let (producer, client) = (here.client(), there.client());
        let worker = worker(&client).await;
        for round in 0..5 {
            let claim = ClaimRequest { max: 1, wait_s: Some(WAIT_S), ..ClaimRequest::default() };
            let (claimed, (id, pushed)) = tokio::join!(client.claim(worker, &claim), async {
                // Asked after the claim on the same connections: by its answer the claim is open.
                client.heartbeat(worker, &HeartbeatRequest::default()).await.expect("the worker lives");
                (push(&producer, "q", json!(round)).await, Instant::now())
            });
            let jobs = claimed.expect("the claim is answered").jobs;
            assert_eq!(jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [id]);
            println!("answered after {:?}", pushed.elapsed());
            assert!(pushed.elapsed() < WELL_BEFORE, "{:?}", pushed.elapsed());
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn q11_a_cancel_on_one_node_is_heard_by_a_heartbeat_on_another() {
    on_both(async |place| {
        let here = Server::start(&place).await;
        let there = if place.is_postgres() { Some(Server::start(&place).await) } else { None };
        let (canceler, client) = (here.client(), there.as_ref().unwrap_or(&here).client());
        let worker = worker(&client).await;
        let id = push(&client, "q", json!(1)).await;
        let claim = ClaimRequest { max: 1, wait_s: Some(WAIT_S), ..ClaimRequest::default() };
        let claimed = client.claim(worker, &claim).await;
        assert_eq!(claimed.expect("the claim is answered").jobs.len(), 1);
        let beat = HeartbeatRequest { wait_s: Some(WAIT_S), ..HeartbeatRequest::default() };
        let (heard, canceled) = tokio::join!(client.heartbeat(worker, &beat), async {
            until("the job is running", async || {
                let job = canceler.job(id).await.expect("the job is there");
                (job.state == "working").then_some(())
            })
            .await;
            canceler.cancel(id).await.expect("the job is canceled");
            Instant::now()
        });
        assert_eq!(heard.expect("the heartbeat is answered").cancel, [id]);
        println!("heard after {:?}", canceled.elapsed());
        assert!(canceled.elapsed() < WELL_BEFORE, "{:?}", canceled.elapsed());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x8_a_second_server_on_the_same_sqlite_file_is_refused() {
    on_sqlite(async |place| {
        let first = Server::start(&place).await;
        let second = refused(place.folder(), &["--listen", "127.0.0.1:0", "--database", &place.url]).await;
        assert_eq!(second.code, Some(1), "{second:?}");
        assert_eq!(second.stderr.lines().count(), 1, "one sentence: {}", second.stderr);
        assert!(second.stderr.contains("journey.db is in use by another server"), "{}", second.stderr);
        assert!(!second.stdout.contains("serves on"));
        push(&first.client(), "q", json!("the first goes on")).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn q9_a_node_with_a_folder_of_its_own_says_so_and_tells_what_it_does_not_find() {
    on_postgres(async |place| {
        let elsewhere = place.path("elsewhere");
        let other = Serve::on(&place).env("WINDLASS_ARTIFACTS", &elsewhere).start();
        let nodes = [Server::start(&place).await, other.await];
        // Whichever came first has the one.
        until("the other says so", async || {
            let says = |node: &Server| node.program.stderr().contains("is not the folder in which");
            nodes.iter().any(says).then_some(())
        })
        .await;
        let id = push(&nodes[0].client(), "q", json!(1)).await;
        let at = |node: &Server| format!("{}/api/v1/jobs/{id}/artifacts/a", node.url);
        let stored = http().put(at(&nodes[0])).body(vec![0u8; 100_000]).send().await.expect("an answer comes");
        assert_eq!(stored.status(), 201);
        let missed = http().get(at(&nodes[1])).send().await.expect("an answer comes");
        assert_eq!(missed.status(), 503);
        let problem: Value = missed.json().await.expect("a problem document");
        assert_eq!(problem["code"], code::BLOB_MISSING);
        let mut told = String::new();
        for folder in [place.path("data/artifacts"), elsewhere.clone()] {
            let folder = folder.to_str().expect("a path");
            let doctor = ["--output", "json", "doctor", "--database", &place.url, "--artifacts", folder];
            told += &windlass(&doctor).await.stdout;
        }
        assert_eq!(told.matches("is not the folder").count(), 1, "{told}");
    })
    .await;
}

/// What a later version may do to the schema while nodes of this one still serve: add, and nothing else.
const LATER: &str = "
    alter table jobs add column later text;
    alter table ended add column later text;
    alter table history add column later bigint not null default 7;
    alter table queues add column later jsonb;
    alter table workers add column later text;
    create index jobs_later on jobs (later) where later is not null;
    create table later (id bigint primary key)";

/// The migrations of that version.
fn later() -> &'static [Migration] {
    let script = Script { up: LATER, down: "" };
    let newest = MIGRATIONS.last().expect("there are some").version;
    let later = Migration { version: newest + 1, name: "later", sqlite: script, postgres: script };
    MIGRATIONS.iter().copied().chain([later]).collect::<Vec<_>>().leak()
}

#[tokio::test(flavor = "multi_thread")]
async fn x9_a_node_goes_on_while_a_newer_one_brings_its_schema() {
    on_postgres(async |place| {
        let server = Server::start(&place).await;
        let client = server.client();
        let handler = async |_: JobContext| Ok::<_, HandlerError>(());
        let worker = Worker::builder(client.clone()).queue("q").concurrency(4).handle("journey", handler).build();
        let (worker, stop) = (worker.expect("the worker is complete"), CancellationToken::new());
        let mut running = JoinSet::new();
        {
            let stop = stop.clone();
            running.spawn(async move { worker.run(stop).await });
        }
        let some = async || {
            let mut ids = Vec::new();
            for number in 0..20 {
                ids.push(push(&client, "q", json!(number)).await);
            }
            for id in ids {
                in_state(&client, id, &["succeeded"]).await;
            }
        };
        // Every statement has been prepared by now, and every plan made.
        some().await;
        let held = self::worker(&client).await;
        push(&client, "held", json!(1)).await;
        let url = DatabaseUrl::parse(&place.url).expect("it is valid");
        let newer = Store::open(&url, StoreOptions::default()).await.expect("the database opens");
        let (migrated, ()) = tokio::join!(newer.migrate_up_through(later()), some());
        assert_eq!(migrated.expect("the newer one migrates").len(), 1);
        some().await;
        client.heartbeat(held, &HeartbeatRequest::default()).await.expect("the worker lives");
        let jobs = client.jobs(&JobFilter { limit: Some(100), ..JobFilter::default() }).await.expect("jobs are listed");
        assert_eq!(jobs.items.len(), 61);
        stop.cancel();
        for ended in running.join_all().await {
            assert_eq!(ended.expect("the worker is not refused").done, 60);
        }
        place.sql("delete from windlass.schema_migrations where name = 'later'").await;
        place.verify().await;
    })
    .await;
}
