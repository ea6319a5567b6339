//! The embedded engine: opens and migrates the database and runs the background tasks in this process.

use std::sync::Arc;
use std::time::Duration;

use client::{Worker, WorkerBuilder};
use domain::{JobId, Label, TenantId};
use engine::{Engine, EngineOptions};
use serde::Serialize;
use store::queue::artifacts::Blobs;
use store::queue::cancel::Canceled;
use store::queue::enqueue::{Accepted, EnqueueReply};
use store::queue::get::StoredJob;
use store::workflows::journal::approvals::{Answered, ApprovalAnswer};
use store::workflows::journal::events::{NewJobEvent, Sent};
use store::{ARTIFACTS, DatabaseUrl, Store, StoreError, StoreOptions};

use crate::backend::Backend;
use crate::job::JobBuilder;

/// Who answers approvals and sends events from this process.
const PRINCIPAL: &str = "embedded";

#[derive(Debug, thiserror::Error)]
pub enum EmbeddedError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("invalid job: {0}")]
    Job(String),
}

/// A running engine. Clones share the engine.
#[derive(Clone)]
pub struct Embedded {
    engine: Arc<Engine>,
    blobs: Option<Blobs>,
}

impl Embedded {
    /// Opens `sqlite:PATH` or `postgres://…`. No other engine or server may use the same SQLite file. Large artifacts
    /// are stored where `windlass serve` stores them: in `NAME-data/artifacts` beside the file `NAME.db`, or in
    /// `windlass-data/artifacts` in the current directory.
    pub async fn open(url: &str) -> Result<Self, EmbeddedError> {
        let parsed = DatabaseUrl::parse(url)?;
        let options = StoreOptions { exclusive: true, ..StoreOptions::default() };
        let store = Store::open(&parsed, options).await?;
        store.migrate_up().await?;
        let direct_url = store.is_postgres().then(|| url.to_owned());
        let blobs = Some(Blobs::folder(&parsed.data_dir().join(ARTIFACTS))?);
        Self::on(store, EngineOptions { direct_url, blobs, ..EngineOptions::default() }).await
    }

    /// Starts an engine on an open and migrated store.
    pub async fn on(store: Store, options: EngineOptions) -> Result<Self, EmbeddedError> {
        let blobs = options.blobs.clone();
        Ok(Self { engine: Arc::new(Engine::start(store, options).await?), blobs })
    }

    /// Wraps an engine that is already running in this process.
    pub fn of(engine: Arc<Engine>, blobs: Option<Blobs>) -> Self {
        Self { engine, blobs }
    }

    pub fn store(&self) -> &Store {
        self.engine.store()
    }

    /// Enqueues a job. The job is durable when this returns.
    pub async fn enqueue(&self, job: JobBuilder) -> Result<Accepted, EmbeddedError> {
        let mut accepted = self.enqueue_all(vec![job]).await?;
        Ok(accepted.pop().ok_or_else(|| StoreError::unexpected("an enqueue returned no job"))?)
    }

    /// Enqueues jobs, all or none.
    pub async fn enqueue_all(&self, jobs: Vec<JobBuilder>) -> Result<Vec<Accepted>, EmbeddedError> {
        let jobs = jobs.into_iter().map(|job| job.new).collect();
        match self.store().enqueue(TenantId::DEFAULT, jobs, None).await? {
            EnqueueReply::Accepted(accepted) => Ok(accepted),
            EnqueueReply::KeyReused => Err(StoreError::unexpected("a reused idempotency key without a key").into()),
        }
    }

    /// Returns the job when it has ended or after `wait`; `None` if it does not exist.
    pub async fn wait(&self, job: JobId, wait: Duration) -> Result<Option<StoredJob>, EmbeddedError> {
        let never = std::future::pending();
        Ok(engine::queue::long_poll::job(self.store(), TenantId::DEFAULT, job, wait, never).await?)
    }

    /// Enqueues a job by its type. The job is durable when this returns.
    pub async fn push<J: client::Job>(&self, job: &J) -> Result<Accepted, EmbeddedError> {
        let job = job.request().map_err(|error| error.to_string()).and_then(|request| JobBuilder::of_request(&request));
        self.enqueue(job.map_err(EmbeddedError::Job)?).await
    }

    /// Sends a signal event to a job.
    pub async fn send_event(&self, job: JobId, name: &str, data: &impl Serialize) -> Result<Sent, EmbeddedError> {
        let name = Label::new(name).map_err(|error| EmbeddedError::Job(format!("the event's name {error}")))?;
        let data = serde_json::to_string(data).map_err(|error| EmbeddedError::Job(error.to_string()))?;
        let event = NewJobEvent { job, name, data: data.into(), idempotency_key: None, principal: PRINCIPAL.into() };
        Ok(self.store().send_event(TenantId::DEFAULT, event).await?)
    }

    /// Approves an approval of a job.
    pub async fn approve(&self, job: JobId, key: &str, note: Option<&str>) -> Result<Answered, EmbeddedError> {
        self.answer(job, key, true, note).await
    }

    /// Rejects an approval of a job.
    pub async fn reject(&self, job: JobId, key: &str, note: Option<&str>) -> Result<Answered, EmbeddedError> {
        self.answer(job, key, false, note).await
    }

    async fn answer(
        &self,
        job: JobId,
        key: &str,
        approve: bool,
        note: Option<&str>,
    ) -> Result<Answered, EmbeddedError> {
        let key = Label::new(key).map_err(|error| EmbeddedError::Job(format!("the approval's key {error}")))?;
        let note = note.map(str::to_owned);
        let answer = ApprovalAnswer { job, key, approve, note, principal: PRINCIPAL.into() };
        Ok(self.store().answer_approval(TenantId::DEFAULT, answer).await?)
    }

    /// Lets the handler of a workflow undo its steps before the job ends as canceled.
    pub async fn cancel_with_undo(&self, job: JobId) -> Result<Canceled, EmbeddedError> {
        Ok(self.store().cancel_with_undo(TenantId::DEFAULT, job, PRINCIPAL.into()).await?)
    }

    pub async fn cancel(&self, job: JobId) -> Result<Canceled, EmbeddedError> {
        Ok(self.store().cancel(TenantId::DEFAULT, job, "embedded".into()).await?)
    }

    /// Creates a worker in this process. Add handlers and run it.
    pub fn worker(&self) -> WorkerBuilder<Backend> {
        Worker::builder(Backend::new(self.engine.clone(), self.blobs.clone()))
    }

    /// Stops the background tasks. Stop the workers first.
    pub async fn stop(&self) {
        self.engine.stop().await;
    }
}
