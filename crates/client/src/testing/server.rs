//! A server in memory with virtual time. Tests of a worker's handlers use it. `backend` has the calls of the worker.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::to_raw_value;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use wire::{JobError, JobRequest};

use super::state::{ServerState, StoredTestJob, later};
use crate::queue::job::Job;
use crate::queue::worker::{Statistics, Worker, WorkerBuildError, WorkerBuilder, WorkerError};

/// Outcomes after which a test run ends with an error: a workflow that is resumed forever.
const MAX_OUTCOMES: usize = 100_000;

/// A server in memory. Clones share it.
#[derive(Clone)]
pub struct TestServer(Arc<TestServerInner>);

struct TestServerInner {
    state: Mutex<ServerState>,
    changed: Notify,
}

/// The state of a job of a `TestServer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TestJobState {
    /// Waits for a worker, or for its next attempt.
    Queued,
    /// A worker runs it.
    Working,
    /// A suspended workflow.
    Waiting,
    /// Has a result.
    Succeeded,
    /// Has an error.
    Failed,
    /// Was canceled by its handler.
    Canceled,
}

impl TestJobState {
    pub(super) fn has_ended(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Canceled)
    }
}

/// A job of a `TestServer`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TestJob {
    /// The job's state.
    pub state: TestJobState,
    /// Number of attempts.
    pub attempt: i64,
    /// The error of the last failed attempt.
    pub error: Option<JobError>,
    /// The keys of the recorded operations, in order.
    pub keys: Vec<String>,
}

/// Errors of a `TestServer`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TestServerError {
    /// A payload, an event or a result has no JSON form.
    #[error("cannot convert JSON")]
    Json(#[from] serde_json::Error),
    /// The worker is not complete.
    #[error(transparent)]
    Build(#[from] WorkerBuildError),
    /// The worker was rejected.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// No such job or approval exists.
    #[error("the server has no {0}")]
    NotFound(String),
    /// The job has no result.
    #[error("the job is {state:?}: {error:?}")]
    NoResult {
        /// The job's state.
        state: TestJobState,
        /// Its error.
        error: Option<JobError>,
    },
    /// The jobs did not come to an end.
    #[error("the jobs did not come to an end after {MAX_OUTCOMES} attempts")]
    Endless,
}

impl Default for TestServer {
    fn default() -> Self {
        Self::new()
    }
}

impl TestServer {
    /// Creates an empty server. Its time starts in 2030.
    pub fn new() -> Self {
        Self(Arc::new(TestServerInner { state: Mutex::new(ServerState::new()), changed: Notify::new() }))
    }

    /// A worker of this server. Add handlers, and pass it to `run`.
    pub fn worker(&self) -> WorkerBuilder<Self> {
        Worker::builder(self.clone()).concurrency(16)
    }

    /// Enqueues a job.
    pub fn push(&self, queue: &str, kind: &str, payload: &impl Serialize) -> Result<Uuid, TestServerError> {
        let payload = Some(to_raw_value(payload)?);
        Ok(self.enqueue(JobRequest { queue: queue.into(), kind: kind.into(), payload, ..JobRequest::default() }))
    }

    /// Enqueues a job by its type.
    pub fn push_job<J: Job>(&self, job: &J) -> Result<Uuid, TestServerError> {
        Ok(self.enqueue(job.request()?))
    }

    /// Enqueues any job.
    pub fn enqueue(&self, request: JobRequest) -> Uuid {
        self.change(|state| state.enqueue(request))
    }

    /// Runs jobs until none can run any more: all have ended, or wait for an event or an approval. Sleeps and delays end
    /// at once, in the order of their times.
    pub async fn run(&self, worker: WorkerBuilder<Self>) -> Result<Statistics, TestServerError> {
        let worker = worker.build()?;
        let stop = CancellationToken::new();
        let idle = async {
            self.until_idle().await;
            stop.cancel();
        };
        let (statistics, ()) = tokio::join!(worker.run(stop.clone()), idle);
        if self.lock().outcomes >= MAX_OUTCOMES {
            return Err(TestServerError::Endless);
        }
        Ok(statistics?)
    }

    /// Sends a signal event to a job.
    pub fn send_event(&self, job: Uuid, name: &str, data: &impl Serialize) -> Result<(), TestServerError> {
        let data = serde_json::to_value(data)?;
        self.change_job(job, |job, now| job.journal.send(name, data, now))
    }

    /// Cancels a job that no worker runs and lets its handler undo its steps in the next run.
    pub fn cancel_with_undo(&self, job: Uuid) -> Result<(), TestServerError> {
        self.change_job(job, |job, now| {
            job.journal.cancel(now);
            (job.state, job.run_at) = (TestJobState::Queued, now);
        })
    }

    /// Approves an open approval of a job.
    pub fn approve(&self, job: Uuid, key: &str) -> Result<(), TestServerError> {
        self.answer(job, key, true)
    }

    /// Rejects an open approval of a job.
    pub fn reject(&self, job: Uuid, key: &str) -> Result<(), TestServerError> {
        self.answer(job, key, false)
    }

    fn answer(&self, job: Uuid, key: &str, approved: bool) -> Result<(), TestServerError> {
        match self.change_job(job, |job, now| job.journal.answer(key, approved, now))? {
            true => Ok(()),
            false => Err(TestServerError::NotFound(format!("open approval {key}"))),
        }
    }

    /// Returns a job.
    pub fn job(&self, id: Uuid) -> Result<TestJob, TestServerError> {
        let state = self.lock();
        let job = state.jobs.get(&id).ok_or_else(|| TestServerError::NotFound(format!("job {id}")))?;
        let keys = job.journal.entries.iter().map(|entry| entry.key.clone()).collect();
        Ok(TestJob { state: job.state, attempt: job.attempt, error: job.error.clone(), keys })
    }

    /// Returns the result of a succeeded job.
    pub fn result<T: DeserializeOwned>(&self, id: Uuid) -> Result<T, TestServerError> {
        let state = self.lock();
        let job = state.jobs.get(&id).ok_or_else(|| TestServerError::NotFound(format!("job {id}")))?;
        if job.state != TestJobState::Succeeded {
            return Err(TestServerError::NoResult { state: job.state, error: job.error.clone() });
        }
        Ok(serde_json::from_str(job.result.as_ref().map_or("null", |result| result.get()))?)
    }

    /// The events that workflows published: topic and data.
    pub fn published(&self) -> Vec<(String, Value)> {
        self.lock().published.clone()
    }

    /// The content of an artifact.
    pub fn artifact(&self, job: Uuid, name: &str) -> Option<Bytes> {
        self.lock().artifacts.get(&(job, name.to_owned())).cloned()
    }

    /// The virtual time.
    pub fn now(&self) -> Timestamp {
        self.lock().now
    }

    /// Moves the virtual time.
    pub fn advance(&self, duration: Duration) {
        self.change(|state| {
            let now = later(state.now, duration);
            state.pass_to(now);
        });
    }

    /// Number of operations of each journal request.
    #[cfg(test)]
    pub(super) fn writes(&self) -> Vec<usize> {
        self.lock().writes.clone()
    }

    #[cfg(test)]
    pub(super) fn refuse_key(&self, key: &str) {
        self.lock().refused_key = Some(key.into());
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ServerState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn change<T>(&self, change: impl FnOnce(&mut ServerState) -> T) -> T {
        let result = {
            let mut state = self.lock();
            let result = change(&mut state);
            state.wake();
            result
        };
        self.changed().notify_waiters();
        result
    }

    fn change_job<T>(
        &self,
        id: Uuid,
        change: impl FnOnce(&mut StoredTestJob, Timestamp) -> T,
    ) -> Result<T, TestServerError> {
        self.change(|state| {
            let now = state.now;
            let job = state.jobs.get_mut(&id).ok_or_else(|| TestServerError::NotFound(format!("job {id}")))?;
            Ok(change(job, now))
        })
    }

    pub(super) fn changed(&self) -> &Notify {
        &self.0.changed
    }

    /// Waits until no job runs and none becomes ready, also with time.
    async fn until_idle(&self) {
        loop {
            let changed = self.changed().notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let next = {
                let state = self.lock();
                if state.outcomes >= MAX_OUTCOMES {
                    return;
                }
                if state.is_busy() { None } else { Some(state.next_due()) }
            };
            match next {
                None => changed.await,
                Some(Some(due)) => self.change(|state| state.pass_to(due)),
                Some(None) => return,
            }
        }
    }
}
