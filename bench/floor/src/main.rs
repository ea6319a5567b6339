//! The least code that takes a job over HTTP and answers once PostgreSQL has it on disk: `floor-http-pg PORT [WRITERS]`.
//!
//! Requests that come while a commit is under way share the next one. The table is the one of the other floors: narrow,
//! without history, tenants, rights or counters. `DATABASE_URL` names a database of its own.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use serde_json::value::RawValue;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_postgres::{Client, NoTls};

const SCHEMA: &str = "drop table if exists jobs;
    create table jobs (
        id bigint generated always as identity primary key, queue_id int not null, priority smallint not null default 0,
        state smallint not null default 0, attempts smallint not null default 0,
        run_at timestamptz not null default now(), locked_until timestamptz not null default '-infinity',
        finished_at timestamptz, payload text not null);
    create index jobs_ready on jobs (queue_id, priority, id) where state = 0";
const INSERT: &str = "insert into jobs (queue_id, payload) select 1, p from unnest($1::text[]) p returning id";
const GROUP: usize = 1_000;

type Job = (String, oneshot::Sender<i64>);

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the database answers");
    tokio::spawn(connection);
    client
}

async fn write(client: Client, jobs: Arc<Mutex<mpsc::Receiver<Job>>>) {
    let insert = client.prepare(INSERT).await.expect("the table is there");
    loop {
        let mut taken = Vec::new();
        jobs.lock().await.recv_many(&mut taken, GROUP).await;
        let (payloads, answers): (Vec<String>, Vec<_>) = taken.into_iter().unzip();
        let rows = client.query(&insert, &[&payloads]).await.expect("the database takes them");
        for (answer, row) in answers.into_iter().zip(rows) {
            let _ = answer.send(row.get(0));
        }
    }
}

async fn enqueue(State(jobs): State<mpsc::Sender<Job>>, Json(payload): Json<Box<RawValue>>) -> Json<serde_json::Value> {
    let (answer, answered) = oneshot::channel();
    jobs.send((payload.get().to_owned(), answer)).await.expect("the writers run");
    Json(serde_json::json!({ "id": answered.await.expect("the writers answer") }))
}

#[tokio::main(worker_threads = 2)]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let port: u16 = arguments.next().and_then(|port| port.parse().ok()).expect("a port");
    let writers: usize = arguments.next().and_then(|writers| writers.parse().ok()).unwrap_or(1);
    let url = std::env::var("DATABASE_URL").expect("DATABASE_URL");
    connect(&url).await.batch_execute(SCHEMA).await.expect("the table is made");
    let (jobs, taken) = mpsc::channel(4_096);
    let taken = Arc::new(Mutex::new(taken));
    for _ in 0..writers {
        tokio::spawn(write(connect(&url).await, taken.clone()));
    }
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await.expect("the port is free");
    axum::serve(listener, Router::new().route("/jobs", post(enqueue)).with_state(jobs)).await.expect("it serves");
}
