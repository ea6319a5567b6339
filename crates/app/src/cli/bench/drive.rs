//! The two ways to the engine: in this process, and over HTTP on loopback.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use client::{Client, HandlerError, JobContext, Worker, WorkerBuilder};
use embedded::{Embedded, Job};
use engine::EngineOptions;
use store::Store;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use wire::{JobRequest, RawValue};

use super::raw::Connection;

pub(super) const QUEUE: &str = "bench";
pub(super) const KIND: &str = "noop";

/// A way to put jobs in and to run them.
pub(super) trait Way: Clone + Send + Sync + 'static {
    type Backend: client::Backend;

    /// One of the callers that put in a job at a time.
    type Producer: Producer;

    const CFG: &'static str;

    fn producer(&self) -> impl Future<Output = anyhow::Result<Self::Producer>> + Send;
    fn one(&self, payload: String) -> impl Future<Output = anyhow::Result<()>> + Send;
    fn many(&self, payloads: Vec<String>) -> impl Future<Output = anyhow::Result<()>> + Send;
    fn worker(&self) -> anyhow::Result<WorkerBuilder<Self::Backend>>;
    fn store(&self) -> &Store;
}

pub(super) trait Producer: Send + 'static {
    fn put(&mut self, payload: String) -> impl Future<Output = anyhow::Result<()>> + Send;
}

impl Producer for Embed {
    async fn put(&mut self, payload: String) -> anyhow::Result<()> {
        self.one(payload).await
    }
}

impl Producer for Connection {
    async fn put(&mut self, payload: String) -> anyhow::Result<()> {
        self.post(&format!(r#"{{"queue":"{QUEUE}","kind":"{KIND}","payload":{payload}}}"#)).await
    }
}

#[derive(Clone)]
pub(super) struct Embed {
    engine: Embedded,
}

impl Embed {
    pub(super) async fn start(store: &Store) -> anyhow::Result<Self> {
        Ok(Self { engine: Embedded::on(store.clone(), EngineOptions::default()).await? })
    }
}

fn job(payload: &str) -> anyhow::Result<Job> {
    let raw: &RawValue = serde_json::from_str(payload)?;
    Ok(Job::new(QUEUE, KIND)?.payload(raw)?)
}

impl Way for Embed {
    type Backend = embedded::Backend;
    type Producer = Self;

    const CFG: &'static str = "embedded";

    async fn producer(&self) -> anyhow::Result<Self> {
        Ok(self.clone())
    }

    async fn one(&self, payload: String) -> anyhow::Result<()> {
        self.engine.enqueue(job(&payload)?).await?;
        Ok(())
    }

    async fn many(&self, payloads: Vec<String>) -> anyhow::Result<()> {
        let jobs = payloads.iter().map(|payload| job(payload)).collect::<anyhow::Result<Vec<_>>>()?;
        self.engine.enqueue_all(jobs).await?;
        Ok(())
    }

    fn worker(&self) -> anyhow::Result<WorkerBuilder<Self::Backend>> {
        Ok(self.engine.worker())
    }

    fn store(&self) -> &Store {
        self.engine.store()
    }
}

#[derive(Clone)]
pub(super) struct Http {
    client: Client,
    url: String,
    store: Store,
    _server: Arc<Server>,
}

/// Stops with the last handle on it.
struct Server {
    stop: CancellationToken,
    /// Large artifacts would go here; the benchmark makes none.
    _folder: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Http {
    pub(super) async fn start(store: &Store) -> anyhow::Result<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.context("cannot listen on loopback")?;
        let url = format!("http://{}", listener.local_addr()?);
        let stop = CancellationToken::new();
        let folder = tempfile::tempdir()?;
        let state = crate::cli::serve::state(store.clone(), EngineOptions::default(), folder.path()).await?;
        TaskTracker::new().spawn(server::serve(listener, state, stop.clone()));
        let client = Client::new(&url)?;
        Ok(Self { client, url, store: store.clone(), _server: Arc::new(Server { stop, _folder: folder }) })
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Its address, as a request names it.
    pub(super) fn host(&self) -> &str {
        self.url.trim_start_matches("http://")
    }
}

pub(super) fn request(payload: String) -> anyhow::Result<JobRequest> {
    Ok(JobRequest {
        queue: QUEUE.into(),
        kind: KIND.into(),
        payload: Some(RawValue::from_string(payload)?),
        ..JobRequest::default()
    })
}

impl Way for Http {
    type Backend = Client;
    type Producer = Connection;

    const CFG: &'static str = "http";

    async fn producer(&self) -> anyhow::Result<Connection> {
        Connection::open(self.host()).await
    }

    async fn one(&self, payload: String) -> anyhow::Result<()> {
        self.client.enqueue(&request(payload)?).await?;
        Ok(())
    }

    async fn many(&self, payloads: Vec<String>) -> anyhow::Result<()> {
        let jobs = payloads.into_iter().map(request).collect::<anyhow::Result<Vec<_>>>()?;
        self.client.enqueue_batch(jobs).await?;
        Ok(())
    }

    fn worker(&self) -> anyhow::Result<WorkerBuilder<Self::Backend>> {
        Ok(Worker::builder(Client::new(&self.url)?))
    }

    fn store(&self) -> &Store {
        &self.store
    }
}

/// A worker that does nothing with each job, as well as it can.
pub(super) fn worker<W: Way>(
    way: &W,
    concurrency: usize,
    prefetch: usize,
    on_start: impl Fn(&JobContext) + Send + Sync + 'static,
) -> anyhow::Result<Worker<W::Backend>> {
    let on_start = Arc::new(on_start);
    let handler = move |job: JobContext| {
        let on_start = on_start.clone();
        async move {
            on_start(&job);
            Ok::<(), HandlerError>(())
        }
    };
    let worker = way.worker()?.queue(QUEUE).concurrency(concurrency).prefetch(prefetch);
    Ok(worker.drain_grace(Duration::from_secs(5)).handle(KIND, handler).build()?)
}
