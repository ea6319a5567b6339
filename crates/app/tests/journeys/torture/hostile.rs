//! Attacks on availability by one client while another one works: many and slow connections, large claims, expensive
//! conditions, many streams, and bodies that nest deeply. The other client must be served in time throughout.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use client::wire::{RawValue, TriggerRequest};
use client::{Client, Worker};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Plan;
use crate::support::{Fixture, Server, ended, eventually, job};

/// How long a job of the other client and a health check may take, on a machine that runs other tests. The campaign prints
/// the time.
const SERVED_WITHIN: Duration = Duration::from_secs(60);
/// Memory that the server may use during the attacks.
const MEMORY_KB: u64 = 2 << 20;
const SLOW_CONNECTIONS: usize = 300;
const STREAMS: usize = 60;
const LARGE_JOBS: usize = 48;
const LARGE: usize = 1_000_000;

/// Sends the start of a request and reads what the server answers until it closes the connection.
async fn send(address: SocketAddr, request: String) -> Vec<u8> {
    let mut answer = Vec::new();
    if let Ok(mut connection) = TcpStream::connect(address).await {
        // A server that rejects the request may close the connection before it is written or read completely.
        let _written = connection.write_all(request.as_bytes()).await;
        let _read = connection.read_to_end(&mut answer).await;
    }
    answer
}

fn post(path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

/// Starts all attacks. They run until the set is dropped.
async fn attack(address: SocketAddr, client: &Client) -> JoinSet<()> {
    let trigger = TriggerRequest {
        name: "expensive".into(),
        source: "pubsub".into(),
        filter: Some(raw(&json!({"topic": "bomb", "when": "data | reject('in', data) | list | length > 0"}))),
        target: raw(&json!({"job": {"queue": "never", "kind": "k"}})),
        mode: None,
        retry: None,
        enabled: None,
        handles: None,
    };
    client.create_trigger(&trigger).await.expect("the trigger is accepted");
    let mut attacks = JoinSet::new();
    for number in 0..SLOW_CONNECTIONS {
        let head = "POST /api/v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 900\r\n";
        let end = if number % 2 == 0 { "" } else { "\r\n{" };
        attacks.spawn(async move {
            send(address, format!("{head}{end}")).await;
        });
    }
    for _ in 0..STREAMS {
        let request = "GET /api/v1/stream HTTP/1.1\r\nhost: localhost\r\n\r\n";
        attacks.spawn(async move {
            send(address, request.into()).await;
        });
    }
    attacks.spawn(async move {
        let items: Vec<String> = (0..50_000).map(|number| number.to_string()).collect();
        let bomb = format!("[{}]", items.join(","));
        loop {
            send(address, post("/api/v1/topics/bomb", &bomb)).await;
        }
    });
    attacks.spawn(async move {
        let nested = format!(r#"{{"queue": "q", "kind": "k", "payload": {}}}"#, "[".repeat(LARGE));
        loop {
            send(address, post("/api/v1/jobs", &nested)).await;
        }
    });
    let large = client.clone();
    attacks.spawn(async move {
        let payload = json!("x".repeat(LARGE));
        for _ in 0..LARGE_JOBS {
            // The quota of bytes in flight may reject it.
            let _accepted = large.enqueue(&job("large", payload.clone())).await;
        }
    });
    attacks
}

fn raw(value: &Value) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).expect("a value is JSON")
}

/// A claim of all large jobs by a client that does not read the answer.
async fn claim_without_reading(address: SocketAddr) -> Option<TcpStream> {
    let worker =
        send(address, post("/api/v1/workers", r#"{"name": "greedy", "queues": ["large"], "lease_s": 3600}"#)).await;
    let text = String::from_utf8(worker).ok()?;
    let answer: Value = serde_json::from_str(text.split("\r\n\r\n").nth(1)?).ok()?;
    let mut connection = TcpStream::connect(address).await.ok()?;
    let claim = post(&format!("/api/v1/workers/{}/claim", answer["id"].as_str()?), r#"{"max": 2000}"#);
    connection.write_all(claim.as_bytes()).await.ok()?;
    Some(connection)
}

/// Highest resident memory of the server so far.
fn peak_memory_kb(server: &Server) -> u64 {
    let path = format!("/proc/{}/status", server.program.id().as_raw_nonzero());
    let status = std::fs::read_to_string(path).expect("the server runs");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("Linux reports the memory");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
}

async fn campaign(fixture: Fixture) {
    let server = Server::start(&fixture).await;
    let address = server.url.trim_start_matches("http://").parse().expect("the server prints its address");
    let client = server.client();
    let stop = CancellationToken::new();
    let builder = Worker::builder(client.clone()).name("steady").queues(["steady"]);
    let worker = builder.handle_any(async |_| Ok(1)).build().expect("the worker is complete");
    let mut workers = JoinSet::new();
    let stopped = stop.clone();
    workers.spawn(async move { worker.run(stopped).await.map(drop) });
    let attacks = attack(address, &client).await;
    let mut unread = Vec::new();
    let mut slowest = Duration::ZERO;
    let rounds = Plan::read().kills;
    for _ in 0..rounds {
        unread.push(claim_without_reading(address).await);
        let asked = Instant::now();
        let id = client.enqueue(&job("steady", json!(null))).await.expect("the job is accepted").id;
        assert_eq!(ended(&client, id).await.state, "succeeded");
        let health =
            send(address, "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".into()).await;
        assert!(health.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&health));
        slowest = slowest.max(asked.elapsed());
    }
    let memory_kb = peak_memory_kb(&server);
    println!("hostile: rounds={rounds} slowest job and health check={slowest:?} memory={memory_kb} kB");
    assert!(slowest < SERVED_WITHIN, "another client waited {slowest:?}");
    assert!(memory_kb < MEMORY_KB, "the server used {memory_kb} kB");
    drop((attacks, unread));
    eventually("the server is ready after the attacks", async || client.ready().await.ok()).await;
    stop.cancel();
    while let Some(ended) = workers.join_next().await {
        ended.expect("no worker panics").expect("the server accepts the worker");
    }
    drop(server);
    fixture.verify().await;
}

/// Requirement X10.
#[tokio::test(flavor = "multi_thread")]
async fn attacks_by_one_client_do_not_delay_another_on_sqlite() {
    campaign(Fixture::sqlite()).await;
}

/// Requirement X10.
#[tokio::test(flavor = "multi_thread")]
async fn attacks_by_one_client_do_not_delay_another_on_postgres() {
    campaign(Fixture::postgres().await).await;
}
