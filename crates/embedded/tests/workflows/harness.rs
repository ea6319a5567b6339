//! An engine with one worker that a test can kill and replace.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use client::{Statistics, WorkerBuilder, WorkerError};
use domain::{JobId, JobState, TenantId};
use embedded::{Backend, Embedded, JobBuilder};
use engine::EngineOptions;
use serde_json::{Value, json};
use store::queue::artifacts::Blobs;
use store::queue::get::StoredJob;
use testkit::Database;
use testkit::eventually::{TIMEOUT, before_timeout, eventually};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub(crate) struct Harness {
    pub(crate) engine: Embedded,
    _database: Database,
    _blobs: tempfile::TempDir,
}

impl Harness {
    pub(crate) async fn on(database: Database) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let blobs = Some(Blobs::folder(folder.path()).expect("the folder stores blobs"));
        let options = EngineOptions { blobs, ..EngineOptions::default() };
        let engine = Embedded::on(database.store.clone(), options).await.expect("the engine starts");
        Self { engine, _database: database, _blobs: folder }
    }

    /// Starts a worker with these handlers on the queue `q`.
    pub(crate) fn work(&self, handlers: impl FnOnce(WorkerBuilder<Backend>) -> WorkerBuilder<Backend>) -> Running {
        let builder = self.engine.worker().queue("q").concurrency(8).lease_s(600);
        let worker = handlers(builder).build().expect("the worker is complete");
        let stop = CancellationToken::new();
        let mut run = JoinSet::new();
        {
            let stop = stop.clone();
            run.spawn(async move { worker.run(stop).await });
        }
        Running { stop, run }
    }

    pub(crate) async fn push(&self, kind: &str, payload: Value) -> JobId {
        self.enqueue(
            JobBuilder::new("q", kind).expect("the names are valid").payload(&payload).expect("a value is JSON"),
        )
        .await
    }

    pub(crate) async fn enqueue(&self, job: JobBuilder) -> JobId {
        self.engine.enqueue(job).await.expect("the job is accepted").id
    }

    pub(crate) async fn job(&self, job: JobId) -> StoredJob {
        self.engine.wait(job, Duration::ZERO).await.expect("the engine responds").expect("the job exists")
    }

    pub(crate) async fn in_state(&self, job: JobId, state: JobState) -> StoredJob {
        eventually(&format!("{job} is {state}"), async || {
            let job = self.job(job).await;
            (job.state == state).then_some(job)
        })
        .await
    }

    pub(crate) async fn ended(&self, job: JobId) -> StoredJob {
        let job = self.engine.wait(job, TIMEOUT).await.expect("the engine responds").expect("the job exists");
        assert!(job.state.is_terminal(), "{job:?}");
        job
    }

    /// The result of a job that succeeds.
    pub(crate) async fn result(&self, job: JobId) -> Value {
        let job = self.ended(job).await;
        assert_eq!(job.state, JobState::Succeeded, "{:?}", job.error);
        job.result.map_or(Value::Null, |result| serde_json::from_str(&result).expect("a result is JSON"))
    }

    /// The keys of the journal with the kinds of their operations, by position.
    pub(crate) async fn journal(&self, job: JobId) -> Vec<(String, String)> {
        let (_, page) = self.engine.store().read_journal(TenantId::DEFAULT, job, 0, 10_000).await.expect("it is read");
        page.entries.into_iter().map(|entry| (entry.key.to_string(), entry.op.to_string())).collect()
    }

    pub(crate) async fn keys(&self, job: JobId) -> Vec<String> {
        self.journal(job).await.into_iter().map(|(key, _)| key).collect()
    }

    /// Removes all workers. Their jobs return to the queue.
    pub(crate) async fn remove_workers(&self) {
        let store = self.engine.store();
        let workers = store.list_workers(TenantId::DEFAULT, None, 100).await.expect("workers are listed");
        for listed in workers {
            store.remove_worker(TenantId::DEFAULT, listed.worker.id).await.expect("the worker is removed");
        }
    }

    pub(crate) async fn send(&self, job: JobId, name: &str, data: Value) {
        self.engine.send_event(job, name, &data).await.expect("the event is accepted");
    }
}

pub(crate) struct Running {
    stop: CancellationToken,
    run: JoinSet<Result<Statistics, WorkerError>>,
}

impl Running {
    /// Ends the worker like a killed process: it settles nothing and does not deregister.
    pub(crate) async fn kill(mut self, harness: &Harness) {
        self.run.shutdown().await;
        // Without this, the test would wait for the end of the lease.
        harness.remove_workers().await;
    }

    /// Ends the worker like a killed process, and leaves its lease to expire.
    pub(crate) async fn abandon(mut self) {
        self.run.shutdown().await;
    }

    pub(crate) async fn stop(mut self) -> Statistics {
        self.stop.cancel();
        let ended = before_timeout("the worker stops", self.run.join_next()).await;
        ended.expect("it was started").expect("it does not panic").expect("the engine accepts the worker")
    }
}

/// How often each piece of work was executed.
#[derive(Clone, Default)]
pub(crate) struct Executions(Arc<Mutex<BTreeMap<String, usize>>>);

impl Executions {
    pub(crate) fn add(&self, name: impl Into<String>) -> usize {
        let mut counts = self.0.lock().expect("lock poisoned");
        let count = counts.entry(name.into()).or_default();
        *count += 1;
        *count
    }

    pub(crate) fn of(&self, name: &str) -> usize {
        self.0.lock().expect("lock poisoned").get(name).copied().unwrap_or_default()
    }

    pub(crate) fn all(&self) -> Value {
        json!(*self.0.lock().expect("lock poisoned"))
    }
}
