//! Opens the database, brings its schema up to date and runs the engine's tasks in this process.

use std::sync::Arc;
use std::time::Duration;

use client::{Worker, WorkerBuilder};
use domain::{JobId, TenantId};
use engine::{Engine, EngineOptions};
use store::artifacts::Blobs;
use store::jobs::cancel::Canceled;
use store::jobs::enqueue::{Accepted, EnqueueReply};
use store::jobs::get::StoredJob;
use store::{DatabaseUrl, Store, StoreError, StoreOptions};

use crate::backend::Backend;
use crate::job::Job;

#[derive(Debug, thiserror::Error)]
pub enum EmbeddedError {
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A running engine. Clones share it.
#[derive(Clone)]
pub struct Embedded {
    engine: Arc<Engine>,
    blobs: Option<Blobs>,
}

impl Embedded {
    /// `sqlite:PATH` or `postgres://…`. On SQLite no other engine or server may have the file. Large artifacts go to a
    /// folder beside it, `PATH` with the ending `.artifacts`, or to `windlass-artifacts` here.
    pub async fn open(url: &str) -> Result<Self, EmbeddedError> {
        let parsed = DatabaseUrl::parse(url)?;
        let options = StoreOptions { exclusive: true, ..StoreOptions::default() };
        let store = Store::open(&parsed, options).await?;
        store.migrate_up().await?;
        let direct_url = store.is_postgres().then(|| url.to_owned());
        let folder = match &parsed {
            DatabaseUrl::Sqlite(path) => path.with_extension("artifacts"),
            DatabaseUrl::Postgres(_) => "windlass-artifacts".into(),
        };
        let blobs = Some(Blobs::folder(&folder)?);
        Self::on(store, EngineOptions { direct_url, blobs, ..EngineOptions::default() }).await
    }

    /// On a store that is open and migrated.
    pub async fn on(store: Store, options: EngineOptions) -> Result<Self, EmbeddedError> {
        let blobs = options.blobs.clone();
        Ok(Self { engine: Arc::new(Engine::start(store, options).await?), blobs })
    }

    /// On an engine that this process runs already.
    pub fn of(engine: Arc<Engine>, blobs: Option<Blobs>) -> Self {
        Self { engine, blobs }
    }

    pub fn store(&self) -> &Store {
        self.engine.store()
    }

    /// Makes one job and returns once it is durable.
    pub async fn enqueue(&self, job: Job) -> Result<Accepted, EmbeddedError> {
        let mut made = self.enqueue_all(vec![job]).await?;
        Ok(made.pop().ok_or_else(|| StoreError::unexpected("an enqueue made no job"))?)
    }

    /// Makes jobs, all or none.
    pub async fn enqueue_all(&self, jobs: Vec<Job>) -> Result<Vec<Accepted>, EmbeddedError> {
        let jobs = jobs.into_iter().map(|job| job.new).collect();
        match self.store().enqueue(TenantId::DEFAULT, jobs, None).await? {
            EnqueueReply::Accepted(made) => Ok(made),
            EnqueueReply::KeyReused => Err(StoreError::unexpected("a key that was not given").into()),
        }
    }

    /// The job, once it has ended or the time is up; `None` when there is none.
    pub async fn wait(&self, job: JobId, wait: Duration) -> Result<Option<StoredJob>, EmbeddedError> {
        let never = std::future::pending();
        Ok(engine::waiting::job(self.store(), TenantId::DEFAULT, job, wait, never).await?)
    }

    pub async fn cancel(&self, job: JobId) -> Result<Canceled, EmbeddedError> {
        Ok(self.store().cancel(TenantId::DEFAULT, job, "embedded".into()).await?)
    }

    /// A worker in this process, to be given handlers and run.
    pub fn worker(&self) -> WorkerBuilder<Backend> {
        Worker::builder(Backend::new(self.engine.clone(), self.blobs.clone()))
    }

    /// Stops the tasks. Workers should have been stopped before.
    pub async fn stop(&self) {
        self.engine.stop().await;
    }
}
