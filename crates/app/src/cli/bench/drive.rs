//! The two transports to the engine: in this process, and HTTP on loopback.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use client::{Client, HandlerError, JobContext, Worker, WorkerBuilder};
use embedded::{Embedded, JobBuilder};
use engine::EngineOptions;
use store::Store;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use wire::{JobRequest, RawValue};

use super::raw::RawConnection;

pub(super) const QUEUE: &str = "bench";
pub(super) const KIND: &str = "noop";

/// Enqueues and runs jobs on an engine.
pub(super) trait Transport: Clone + Send + Sync + 'static {
    type Backend: client::Backend;

    /// A caller that enqueues one job at a time.
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

impl Producer for EmbeddedEngine {
    async fn put(&mut self, payload: String) -> anyhow::Result<()> {
        self.one(payload).await
    }
}

impl Producer for RawConnection {
    async fn put(&mut self, payload: String) -> anyhow::Result<()> {
        self.post(&format!(r#"{{"queue":"{QUEUE}","kind":"{KIND}","payload":{payload}}}"#)).await
    }
}

#[derive(Clone)]
pub(super) struct EmbeddedEngine {
    engine: Embedded,
}

impl EmbeddedEngine {
    pub(super) async fn start(store: &Store) -> anyhow::Result<Self> {
        Ok(Self { engine: Embedded::on(store.clone(), EngineOptions::default()).await? })
    }
}

fn job(payload: &str) -> anyhow::Result<JobBuilder> {
    let raw: &RawValue = serde_json::from_str(payload)?;
    Ok(JobBuilder::new(QUEUE, KIND)?.payload(raw)?)
}

impl Transport for EmbeddedEngine {
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
pub(super) struct HttpServer {
    client: Client,
    url: String,
    store: Store,
    _server: Arc<Server>,
}

/// The server of a benchmark. Dropping the last handle stops it.
struct Server {
    stop: CancellationToken,
    /// Directory for large artifacts. The benchmark creates none.
    _folder: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl HttpServer {
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

    /// The host and port for the `host` header.
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

impl Transport for HttpServer {
    type Backend = Client;
    type Producer = RawConnection;

    const CFG: &'static str = "http";

    async fn producer(&self) -> anyhow::Result<RawConnection> {
        RawConnection::open(self.host()).await
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

/// A worker with a handler that only calls `on_start`.
pub(super) fn worker<W: Transport>(
    transport: &W,
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
    let worker = transport.worker()?.queue(QUEUE).concurrency(concurrency).prefetch(prefetch);
    Ok(worker.drain_grace(Duration::from_secs(5)).handle(KIND, handler).build()?)
}
