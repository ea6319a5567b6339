//! What every end-to-end test needs: a database and a folder, the programs, and shared calls of the client.

mod commits;
mod engine;
mod fixture;
mod load;
mod postgres;
mod program;
mod proxy;
mod wire;
mod witness;

use std::time::Duration;

use client::wire::{JobRequest, JobView, RawValue};
use client::{Client, ClientError};
use serde_json::Value;
use uuid::Uuid;

pub(crate) use commits::{CommitKiller, KillMoment};
pub(crate) use engine::DockerEngine;
pub(crate) use fixture::{Fixture, count, on_both, on_postgres, on_sqlite};
pub(crate) use load::{Load, observed};
pub(crate) use postgres::Cluster;
pub(crate) use program::{
    CommandOutput, Program, Serve, Server, Work, failed_start, free_port, windlass, windlass_with,
    windlass_with_open_stdin,
};
pub(crate) use proxy::LostCommitProxy;
use testkit::eventually::retry;
pub(crate) use testkit::eventually::{TIMEOUT, before_timeout, eventually, try_eventually};
pub(crate) use wire::{NetworkProxy, Traffic};
pub(crate) use witness::{RETRY_MS, Recorder};

/// Duration of one long poll for the end of a job.
const LONG_POLL: Duration = Duration::from_secs(10);

pub(crate) fn job(queue: &str, payload: Value) -> JobRequest {
    let payload = serde_json::value::to_raw_value(&payload).expect("a value is JSON");
    JobRequest { queue: queue.into(), kind: "journey".into(), payload: Some(payload), ..JobRequest::default() }
}

pub(crate) async fn push(client: &Client, queue: &str, payload: Value) -> Uuid {
    client.enqueue(&job(queue, payload)).await.expect("the job is accepted").id
}

/// Waits until the job is in one of these states. Tolerates a temporarily unavailable server.
pub(crate) async fn in_state(client: &Client, id: Uuid, states: &[&str]) -> JobView {
    eventually(&format!("{id} is in {states:?}"), async || {
        let job = retry_while_unavailable(|| client.job(id)).await;
        states.contains(&job.state.as_str()).then_some(job)
    })
    .await
}

/// Waits until the job has ended. Tolerates a temporarily unavailable server.
pub(crate) async fn ended(client: &Client, id: Uuid) -> JobView {
    eventually(&format!("{id} ends"), async || {
        let job = retry_while_unavailable(|| client.wait_for_job(id, LONG_POLL)).await;
        ["succeeded", "failed", "canceled"].contains(&job.state.as_str()).then_some(job)
    })
    .await
}

pub(crate) fn value(json: Option<&RawValue>) -> Value {
    json.map_or(Value::Null, |json| serde_json::from_str(json.get()).expect("the server sends JSON"))
}

/// Returns the names of the job's events, oldest first.
pub(crate) async fn events(client: &Client, id: Uuid) -> Vec<String> {
    let history = client.history(id).await.expect("the job has a history");
    history.items.into_iter().map(|item| item.event).collect()
}

/// Repeats the call until the server responds, as a producer does that must not lose its job.
pub(crate) async fn retry_while_unavailable<T, F>(call: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, ClientError>>,
{
    retry(is_transient, call).await
}

pub(crate) fn is_transient(error: &ClientError) -> bool {
    matches!(error, ClientError::Unreachable { .. }) || error.status() == Some(503)
}

/// An HTTP client for requests that the client crate does not make: other hosts, other bodies, pages.
pub(crate) fn http() -> reqwest::Client {
    // The windlass client passes its own crypto provider. This client uses the process default, which another call may
    // have set already.
    let _set = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().timeout(TIMEOUT).build().expect("an HTTP client")
}
