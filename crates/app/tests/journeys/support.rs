//! What every journey needs: a database, the program, and patience with an end.

mod commits;
mod engine;
mod load;
mod place;
mod postgres;
mod program;
mod proxy;
mod wire;
mod witness;

use std::time::{Duration, Instant};

use client::wire::{JobRequest, JobView, RawValue};
use client::{Client, ClientError};
use serde_json::Value;
use uuid::Uuid;

pub(crate) use commits::{Commits, Moment};
pub(crate) use engine::OwnEngine;
pub(crate) use load::{Load, seen};
pub(crate) use place::{Place, on_both, on_postgres, on_sqlite};
pub(crate) use postgres::Cluster;
pub(crate) use program::{
    Done, Program, Serve, Server, Work, free_port, refused, windlass, windlass_at_a_terminal, windlass_with,
};
pub(crate) use proxy::Proxy;
pub(crate) use wire::{Between, Wire};
pub(crate) use witness::{RETRY_MS, Witness};

/// How long anything may take before a test gives up: machines are noisy, and no test is about speed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);
const LOOK_EVERY: Duration = Duration::from_millis(15);

/// Looks until there is something to see.
pub(crate) async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

pub(crate) fn job(queue: &str, payload: Value) -> JobRequest {
    let payload = serde_json::value::to_raw_value(&payload).expect("JSON is JSON");
    JobRequest { queue: queue.into(), kind: "journey".into(), payload: Some(payload), ..JobRequest::default() }
}

pub(crate) async fn push(client: &Client, queue: &str, payload: Value) -> Uuid {
    client.enqueue(&job(queue, payload)).await.expect("the job is accepted").id
}

/// The job once it is in one of these states. A database that is slow for a while is waited out.
pub(crate) async fn in_state(client: &Client, id: Uuid, states: &[&str]) -> JobView {
    until(&format!("{id} is in {states:?}"), async || {
        let job = insist(async || client.job(id).await).await;
        states.contains(&job.state.as_str()).then_some(job)
    })
    .await
}

pub(crate) async fn ended(client: &Client, id: Uuid) -> JobView {
    in_state(client, id, &["succeeded", "failed", "canceled"]).await
}

pub(crate) fn value(json: Option<&RawValue>) -> Value {
    json.map_or(Value::Null, |json| serde_json::from_str(json.get()).expect("the server speaks JSON"))
}

/// What happened to the job, oldest first.
pub(crate) async fn events(client: &Client, id: Uuid) -> Vec<String> {
    let history = client.history(id).await.expect("the history is there");
    history.items.into_iter().map(|item| item.event).collect()
}

/// The same call until it is answered: what a producer does that must not lose its job.
pub(crate) async fn insist<T>(mut call: impl AsyncFnMut() -> Result<T, ClientError>) -> T {
    until("the server answers", async || match call().await {
        Ok(answer) => Some(answer),
        Err(error) if is_passing(&error) => None,
        Err(error) => panic!("refused: {error}"),
    })
    .await
}

pub(crate) fn is_passing(error: &ClientError) -> bool {
    matches!(error, ClientError::Unreachable { .. }) || error.status() == Some(503)
}

/// For what the client crate does not do: other hosts, other bodies, pages.
pub(crate) fn http() -> reqwest::Client {
    // The program's own client names its provider; this one takes the default of the process, which may be set already.
    let _set = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().expect("an HTTP client")
}
