//! A server in memory with virtual time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use wire::{
    ArtifactView, ClaimRequest, ClaimView, ClaimedJob, ClaimedJournal, HeartbeatRequest, HeartbeatView, JobError,
    JobRequest, JournalRequest, JournalResult, JournalWritten, OutcomeKind, OutcomeRequest, OutcomeStatus, OutcomeView,
    RawValue, SettleRequest, SettleView, SignalUpdate, WorkerRegistered, WorkerRequest, code,
};

use super::journal::{SideEffect, TestJournal, problem, raw};
use crate::backend::{Backend, BackendError};
use crate::queue::job::Job;
use crate::queue::worker::{Statistics, Worker, WorkerBuildError, WorkerBuilder, WorkerError};

/// Delay of a failed attempt, in virtual time.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Attempts of a job, unless its request sets them.
const MAX_ATTEMPTS: i64 = 3;
/// Outcomes after which a test run ends with an error: a workflow that is resumed forever.
const MAX_OUTCOMES: usize = 100_000;

/// A server in memory. Clones share it.
#[derive(Clone)]
pub struct TestServer(Arc<TestServerInner>);

struct TestServerInner {
    state: Mutex<ServerState>,
    changed: Notify,
}

struct ServerState {
    now: Timestamp,
    jobs: BTreeMap<Uuid, StoredTestJob>,
    workers: BTreeMap<Uuid, WorkerFilter>,
    published: Vec<(String, Value)>,
    artifacts: BTreeMap<(Uuid, String), Bytes>,
    next_id: u128,
    outcomes: usize,
    /// Number of operations of each journal request that was answered.
    writes: Vec<usize>,
    /// Requests with an operation of this key are refused.
    refused_key: Option<String>,
}

struct StoredTestJob {
    request: JobRequest,
    state: TestJobState,
    run_at: Timestamp,
    attempt: i64,
    epoch: i64,
    result: Option<Box<RawValue>>,
    error: Option<JobError>,
    journal: TestJournal,
    wake: Vec<String>,
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
    fn has_ended(self) -> bool {
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
        let now = Timestamp::from_second(1_893_456_000).expect("a time");
        let state = ServerState {
            now,
            jobs: BTreeMap::new(),
            workers: BTreeMap::new(),
            published: Vec::new(),
            artifacts: BTreeMap::new(),
            next_id: 1,
            outcomes: 0,
            writes: Vec::new(),
            refused_key: None,
        };
        Self(Arc::new(TestServerInner { state: Mutex::new(state), changed: Notify::new() }))
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

    fn lock(&self) -> MutexGuard<'_, ServerState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut ServerState) -> T) -> T {
        let result = {
            let mut state = self.lock();
            let result = change(&mut state);
            state.wake();
            result
        };
        self.0.changed.notify_waiters();
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

    /// Waits until no job runs and none becomes ready, also with time.
    async fn until_idle(&self) {
        loop {
            let changed = self.0.changed.notified();
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

fn later(now: Timestamp, duration: Duration) -> Timestamp {
    let duration = SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
    now.saturating_add(duration).unwrap_or(Timestamp::MAX)
}

impl ServerState {
    fn enqueue(&mut self, request: JobRequest) -> Uuid {
        let id = Uuid::from_u128(self.next_id);
        self.next_id += 1;
        let job = StoredTestJob {
            run_at: request.run_at.unwrap_or(self.now),
            request,
            state: TestJobState::Queued,
            attempt: 0,
            epoch: 0,
            result: None,
            error: None,
            journal: TestJournal::default(),
            wake: Vec::new(),
        };
        self.jobs.insert(id, job);
        id
    }

    /// True if a job runs or can run, or the worker has not registered.
    fn is_busy(&self) -> bool {
        let is_active = |job: &StoredTestJob| match job.state {
            TestJobState::Working => true,
            TestJobState::Queued => job.run_at <= self.now && self.has_worker_for(job),
            _ => false,
        };
        self.workers.is_empty() || self.jobs.values().any(is_active)
    }

    fn has_worker_for(&self, job: &StoredTestJob) -> bool {
        self.workers.values().any(|worker| worker.accepts(&job.request))
    }

    /// When the next job becomes ready, or the next wait ends.
    fn next_due(&self) -> Option<Timestamp> {
        let live = self.jobs.values().filter(|job| !job.state.has_ended() && self.has_worker_for(job));
        live.filter_map(|job| match job.state {
            TestJobState::Queued => Some(job.run_at),
            _ => job.journal.next_due(),
        })
        .min()
    }

    fn pass_to(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
        for job in self.jobs.values_mut().filter(|job| !job.state.has_ended()) {
            job.journal.resolve_due(self.now);
        }
    }

    /// Resolves waits for children, and queues suspended jobs when their wait is resolved.
    fn wake(&mut self) {
        let ends: BTreeMap<Uuid, Value> =
            self.jobs.iter().filter(|(_, job)| job.state.has_ended()).map(|(id, job)| (*id, job.end(*id))).collect();
        let now = self.now;
        for job in self.jobs.values_mut().filter(|job| !job.state.has_ended()) {
            job.journal.resolve_children(|child| ends.get(&child).cloned(), now);
            let is_resolved = |key: &String| job.journal.entry(key).is_some_and(|entry| entry.seq.is_some());
            if job.state == TestJobState::Waiting && job.wake.iter().any(is_resolved) {
                (job.state, job.run_at) = (TestJobState::Queued, now);
            }
        }
    }

    fn claim(&mut self, worker: Uuid, max: usize) -> Vec<ClaimedJob> {
        let now = self.now;
        let Some(worker) = self.workers.get(&worker) else { return Vec::new() };
        let is_ready = |job: &StoredTestJob| {
            job.state == TestJobState::Queued && job.run_at <= now && worker.accepts(&job.request)
        };
        let ready = self.jobs.iter_mut().filter(|(_, job)| is_ready(job)).take(max);
        ready.map(|(id, job)| job.claim(*id, now)).collect()
    }

    fn settle(&mut self, outcome: &OutcomeRequest) -> OutcomeStatus {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(&outcome.job_id) else { return OutcomeStatus::NotFound };
        if job.state != TestJobState::Working || job.epoch != outcome.epoch {
            return OutcomeStatus::ClaimLost;
        }
        self.outcomes += 1;
        let mut successor = None;
        job.state = match outcome.outcome {
            OutcomeKind::Finish => {
                job.result = outcome.result.clone();
                TestJobState::Succeeded
            }
            OutcomeKind::Fail => {
                job.error = outcome.error.clone();
                let is_final = outcome.error.as_ref().is_none_or(|error| !error.retryable);
                let delay = outcome.backoff_s.map_or(RETRY_DELAY, Duration::from_secs_f64);
                job.run_at = later(now, delay);
                match is_final || job.attempt >= job.request.max_attempts.unwrap_or(MAX_ATTEMPTS) {
                    true => TestJobState::Failed,
                    false => TestJobState::Queued,
                }
            }
            OutcomeKind::Cancel => TestJobState::Canceled,
            OutcomeKind::Snooze => {
                job.attempt -= 1;
                job.run_at = later(now, Duration::from_secs_f64(outcome.delay_s.unwrap_or_default()));
                TestJobState::Queued
            }
            OutcomeKind::Release => {
                job.attempt -= 1;
                TestJobState::Queued
            }
            OutcomeKind::Suspend => {
                job.attempt -= 1;
                job.wake = outcome.wake.clone().and_then(|wake| wake.any).unwrap_or_default();
                TestJobState::Waiting
            }
            OutcomeKind::ContinueAs => {
                successor = Some(JobRequest { payload: outcome.payload.clone(), run_at: None, ..job.request.clone() });
                TestJobState::Succeeded
            }
        };
        if let Some(successor) = successor {
            self.enqueue(successor);
        }
        OutcomeStatus::Applied
    }

    fn journal(&mut self, request: &JournalRequest) -> Result<JournalWritten, BackendError> {
        let now = self.now;
        let ops = || request.writes.iter().flat_map(|write| &write.ops);
        if ops().any(|operation| Some(&operation.key) == self.refused_key.as_ref()) {
            return Err(BackendError::Refused(problem(422, code::INVALID_FIELD, "an operation is invalid")));
        }
        self.writes.push(ops().count());
        let mut results = Vec::new();
        for write in &request.writes {
            let Some(job) = self.jobs.get_mut(&write.job_id) else {
                results.push(JournalResult {
                    job_id: write.job_id,
                    status: OutcomeStatus::NotFound,
                    entries: Vec::new(),
                });
                continue;
            };
            if job.state != TestJobState::Working || job.epoch != write.epoch {
                results.push(JournalResult {
                    job_id: write.job_id,
                    status: OutcomeStatus::ClaimLost,
                    entries: Vec::new(),
                });
                continue;
            }
            let (mut entries, mut started) = (Vec::new(), Vec::new());
            for operation in &write.ops {
                let (entry, effect) =
                    job.journal.record(operation, write.strict, now).map_err(BackendError::Refused)?;
                entries.push(entry);
                match effect {
                    SideEffect::None => {}
                    SideEffect::Publish { topic, data } => self.published.push((topic, data)),
                    SideEffect::Start(requests) => started.push((operation.key.clone(), requests)),
                }
            }
            for (key, requests) in started {
                let children = requests.into_iter().map(|request| self.enqueue(request)).collect();
                if let Some(job) = self.jobs.get_mut(&write.job_id) {
                    job.journal.started(&key, children);
                }
            }
            results.push(JournalResult { job_id: write.job_id, status: OutcomeStatus::Applied, entries });
        }
        Ok(JournalWritten { results })
    }
}

impl StoredTestJob {
    /// The end of a child as its parent's journal has it.
    fn end(&self, id: Uuid) -> Value {
        let state = match self.state {
            TestJobState::Succeeded => "succeeded",
            TestJobState::Failed => "failed",
            _ => "canceled",
        };
        json!({"job_id": id, "state": state, "result": self.result, "error": self.error})
    }

    fn claim(&mut self, id: Uuid, now: Timestamp) -> ClaimedJob {
        self.state = TestJobState::Working;
        self.attempt += 1;
        self.epoch += 1;
        let entries = self.journal.entries.clone();
        ClaimedJob {
            id,
            epoch: self.epoch,
            queue: self.request.queue.clone(),
            kind: self.request.kind.clone(),
            payload: self.request.payload.clone().unwrap_or_else(|| raw(&Value::Null)),
            affinity: self.request.affinity.clone(),
            priority: self.request.priority.unwrap_or_default(),
            subject: self.request.subject.clone(),
            process: self.request.process.clone(),
            run: self.request.run.clone(),
            inputs: None,
            attempt: self.attempt,
            max_attempts: self.request.max_attempts.unwrap_or(MAX_ATTEMPTS),
            timeout_s: self.request.timeout_s,
            created_at: now,
            tenant: None,
            traceparent: self.request.traceparent.clone(),
            journal: (!entries.is_empty()).then_some(ClaimedJournal { entries, next_cursor: None }),
            state: "working".into(),
        }
    }
}

/// What a worker claims.
#[derive(Default)]
struct WorkerFilter {
    queues: Vec<String>,
    kinds: Option<Vec<String>>,
}

impl WorkerFilter {
    fn accepts(&self, request: &JobRequest) -> bool {
        self.queues.contains(&request.queue) && self.kinds.as_ref().is_none_or(|kinds| kinds.contains(&request.kind))
    }
}

impl Backend for TestServer {
    async fn register(&self, request: WorkerRequest) -> Result<WorkerRegistered, BackendError> {
        let id = self.change(|state| {
            let id = Uuid::from_u128(state.next_id);
            state.next_id += 1;
            state.workers.insert(id, WorkerFilter { queues: request.queues, kinds: request.kinds });
            id
        });
        Ok(WorkerRegistered { id, lease_s: 3_600, heartbeat_s: 600.0 })
    }

    async fn heartbeat(&self, _worker: Uuid, request: HeartbeatRequest) -> Result<HeartbeatView, BackendError> {
        tokio::time::sleep(Duration::from_secs_f64(request.wait_s.unwrap_or_default())).await;
        Ok(HeartbeatView { lease_until: Timestamp::MAX, cancel: Vec::new(), drain: false })
    }

    async fn claim(&self, worker: Uuid, request: ClaimRequest) -> Result<ClaimView, BackendError> {
        let max = usize::try_from(request.max).unwrap_or_default();
        let claim = async {
            loop {
                let changed = self.0.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                let jobs = self.lock().claim(worker, max);
                if !jobs.is_empty() {
                    return jobs;
                }
                changed.await;
            }
        };
        let wait = Duration::from_secs_f64(request.wait_s.unwrap_or_default());
        Ok(ClaimView { jobs: timeout(wait, claim).await.unwrap_or_default() })
    }

    async fn settle(&self, _worker: Uuid, request: &SettleRequest) -> Result<SettleView, BackendError> {
        let outcomes = request.outcomes.iter();
        let results = self.change(|state| {
            outcomes.map(|outcome| OutcomeView { job_id: outcome.job_id, status: state.settle(outcome) }).collect()
        });
        Ok(SettleView { results })
    }

    async fn journal(&self, _worker: Uuid, request: &JournalRequest) -> Result<JournalWritten, BackendError> {
        self.change(|state| state.journal(request))
    }

    async fn read_journal(&self, job: Uuid, _cursor: Option<&str>) -> Result<ClaimedJournal, BackendError> {
        let state = self.lock();
        let entries = state.jobs.get(&job).map(|job| job.journal.entries.clone()).unwrap_or_default();
        Ok(ClaimedJournal { entries, next_cursor: None })
    }

    async fn read_result(&self, job: Uuid) -> Result<Option<Box<RawValue>>, BackendError> {
        Ok(self.lock().jobs.get(&job).and_then(|job| job.result.clone()))
    }

    async fn signal(&self, _job: Uuid, _update: SignalUpdate) -> Result<(), BackendError> {
        Ok(())
    }

    async fn put_artifact(
        &self,
        job: Uuid,
        _epoch: i64,
        name: &str,
        content_type: &str,
        bytes: Bytes,
    ) -> Result<ArtifactView, BackendError> {
        let size = bytes.len() as i64;
        let (is_new, created_at) = self.change(|state| {
            let previous = state.artifacts.insert((job, name.to_owned()), bytes.clone());
            (previous.is_none_or(|previous| previous == bytes), state.now)
        });
        if !is_new {
            return Err(BackendError::Refused(problem(409, code::ARTIFACT_EXISTS, "the job has another artifact")));
        }
        let (name, content_type) = (name.to_owned(), content_type.to_owned());
        Ok(ArtifactView { name, size, content_type, sha256: String::new(), created_at })
    }

    async fn deregister(&self, worker: Uuid) -> Result<(), BackendError> {
        self.change(|state| {
            state.workers.remove(&worker);
            for job in state.jobs.values_mut().filter(|job| job.state == TestJobState::Working) {
                (job.state, job.attempt) = (TestJobState::Queued, job.attempt - 1);
            }
        });
        Ok(())
    }
}
