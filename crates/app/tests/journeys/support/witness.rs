//! A client backend that records every request of a worker and its response for the history checker.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use bytes::Bytes;
use client::wire::{
    ArtifactView, ClaimRequest, ClaimView, ClaimedJournal, HeartbeatRequest, HeartbeatView, JournalRequest,
    JournalWritten, OutcomeKind, OutcomeRequest, OutcomeStatus, RawValue, SettleRequest, SettleView, SignalUpdate,
    WorkerRegistered, WorkerRequest,
};
use client::{Backend, BackendError, Client, HeldClaim, JobContext};
use testkit::history::{Event, Millis, Outcome, Response};
use uuid::Uuid;

/// Retry delay of jobs that may fail.
pub(crate) const RETRY_MS: Millis = 1_000;

/// A claim of a job: its id and epoch.
pub(crate) type Claim = (Uuid, i64);

/// The log. It lives in the test process, which no fault kills.
#[derive(Default)]
pub(crate) struct Log {
    /// Claims that a handler ran, with the number of runs.
    pub(crate) runs: HashMap<Claim, usize>,
    /// Workers that received each claim.
    pub(crate) claimed_by: HashMap<Claim, HashSet<Uuid>>,
    /// Successes that the server acknowledged as applied, with the number of acknowledgements.
    pub(crate) applied: HashMap<Claim, usize>,
    /// Successes that a worker sent at least once without a response.
    pub(crate) unanswered: HashSet<Claim>,
    /// Jobs with a running handler.
    running: HashSet<Uuid>,
    /// Jobs that two handlers ran at the same time.
    pub(crate) overlaps: Vec<Uuid>,
    /// All events in order of time, for the history checker.
    pub(crate) history: Vec<Event>,
    leases: HashMap<Uuid, Millis>,
}

#[derive(Clone)]
pub(crate) struct Recorder {
    client: Client,
    log: Arc<Mutex<Log>>,
    since: Instant,
}

impl Recorder {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, log: Arc::default(), since: Instant::now() }
    }

    /// A recorder with the same log and another client.
    pub(crate) fn with_client(&self, client: Client) -> Self {
        Self { client, ..self.clone() }
    }

    /// Milliseconds since the start of the log.
    pub(crate) fn now(&self) -> Millis {
        self.since.elapsed().as_millis() as Millis
    }

    pub(crate) fn record(&self, event: Event) {
        self.write(|log| log.history.push(event));
    }

    pub(crate) fn read<T>(&self, read: impl FnOnce(&Log) -> T) -> T {
        read(&self.log.lock().expect("lock poisoned"))
    }

    fn write(&self, change: impl FnOnce(&mut Log)) {
        change(&mut self.log.lock().expect("lock poisoned"));
    }

    /// Records that a handler started. The job counts as running until the guard is dropped.
    pub(crate) fn handler_started(&self, job: &JobContext) -> RunningGuard {
        let id = job.id();
        self.write(|log| {
            *log.runs.entry((id, job.job().epoch)).or_default() += 1;
            if !log.running.insert(id) {
                log.overlaps.push(id);
            }
        });
        RunningGuard { recorder: self.clone(), job: id }
    }

    pub(crate) fn applied(&self) -> usize {
        self.read(|log| log.applied.len())
    }
}

pub(crate) struct RunningGuard {
    recorder: Recorder,
    job: Uuid,
}

impl Drop for RunningGuard {
    fn drop(&mut self) {
        self.recorder.write(|log| {
            log.running.remove(&self.job);
        });
    }
}

/// Successes that were sent and not yet acknowledged. Dropping it records them as unanswered, also when the call is
/// dropped.
struct PendingSuccesses<'a> {
    recorder: &'a Recorder,
    claims: Vec<Claim>,
}

impl PendingSuccesses<'_> {
    fn acknowledged(mut self) {
        self.claims.clear();
    }
}

impl Drop for PendingSuccesses<'_> {
    fn drop(&mut self) {
        let claims = std::mem::take(&mut self.claims);
        self.recorder.write(|log| log.unanswered.extend(claims));
    }
}

impl Backend for Recorder {
    async fn register(&self, request: WorkerRequest) -> Result<WorkerRegistered, BackendError> {
        let asked = self.now();
        let registered = self.client.register(request).await?;
        let lease_ms = registered.lease_s as Millis * 1_000;
        self.write(|log| {
            log.leases.insert(registered.id, lease_ms);
            log.history.push(Event::Heartbeat { worker: registered.id, asked, lease_ms });
        });
        Ok(registered)
    }

    async fn heartbeat(&self, worker: Uuid, request: HeartbeatRequest) -> Result<HeartbeatView, BackendError> {
        let asked = self.now();
        let response = Backend::heartbeat(&self.client, worker, request).await?;
        self.write(|log| {
            let lease_ms = log.leases.get(&worker).copied().unwrap_or_default();
            log.history.push(Event::Heartbeat { worker, asked, lease_ms });
        });
        Ok(response)
    }

    async fn claim(&self, worker: Uuid, request: ClaimRequest) -> Result<ClaimView, BackendError> {
        let asked = self.now();
        let claimed = Backend::claim(&self.client, worker, request).await?;
        let at = self.now();
        self.write(|log| {
            for job in &claimed.jobs {
                let (epoch, attempt) = (job.epoch, job.attempt);
                log.history.push(Event::Claimed { job: job.id, epoch, attempt, worker, asked, at });
                log.claimed_by.entry((job.id, job.epoch)).or_default().insert(worker);
            }
        });
        Ok(claimed)
    }

    async fn settle(&self, worker: Uuid, request: &SettleRequest) -> Result<SettleView, BackendError> {
        let asked = self.now();
        let settled = |outcome: &OutcomeRequest, answer, at| Event::Settled {
            job: outcome.job_id,
            epoch: outcome.epoch,
            worker,
            outcome: checked_outcome(outcome),
            answer,
            asked,
            at,
        };
        let pending = request.outcomes.iter().map(|outcome| settled(outcome, Response::Unknown, asked));
        self.write(|log| log.history.extend(pending));
        let finished = request.outcomes.iter().filter(|outcome| outcome.outcome == OutcomeKind::Finish);
        let claims = finished.map(|outcome| (outcome.job_id, outcome.epoch)).collect();
        let pending = PendingSuccesses { recorder: self, claims };
        let view = Backend::settle(&self.client, worker, request).await?;
        pending.acknowledged();
        let at = self.now();
        self.write(|log| {
            let response =
                |status| if status == OutcomeStatus::Applied { Response::Applied } else { Response::Refused };
            let pairs = request.outcomes.iter().zip(&view.results);
            log.history.extend(pairs.map(|(outcome, result)| settled(outcome, response(result.status), at)));
            for (outcome, result) in request.outcomes.iter().zip(&view.results) {
                assert_eq!(outcome.job_id, result.job_id, "results must have the order of the outcomes");
                if outcome.outcome == OutcomeKind::Finish && result.status == OutcomeStatus::Applied {
                    *log.applied.entry((outcome.job_id, outcome.epoch)).or_default() += 1;
                }
            }
        });
        Ok(view)
    }

    async fn journal(&self, worker: Uuid, request: &JournalRequest) -> Result<JournalWritten, BackendError> {
        Backend::journal(&self.client, worker, request).await
    }

    async fn read_journal(&self, job: Uuid, cursor: Option<&str>) -> Result<ClaimedJournal, BackendError> {
        Backend::read_journal(&self.client, job, cursor).await
    }

    async fn read_result(&self, claim: HeldClaim, job: Uuid) -> Result<Option<Box<RawValue>>, BackendError> {
        Backend::read_result(&self.client, claim, job).await
    }

    async fn read_artifact(&self, claim: HeldClaim, job: Uuid, name: &str) -> Result<Bytes, BackendError> {
        Backend::read_artifact(&self.client, claim, job, name).await
    }

    async fn signal(&self, job: Uuid, update: SignalUpdate) -> Result<(), BackendError> {
        Backend::signal(&self.client, job, update).await
    }

    async fn put_artifact(
        &self,
        job: Uuid,
        epoch: i64,
        name: &str,
        content_type: &str,
        bytes: Bytes,
    ) -> Result<ArtifactView, BackendError> {
        Backend::put_artifact(&self.client, job, epoch, name, content_type, bytes).await
    }

    async fn deregister(&self, worker: Uuid) -> Result<(), BackendError> {
        self.record(Event::WorkerRemoved { worker, asked: self.now() });
        self.client.deregister(worker).await
    }
}

/// Converts an outcome to the event of the history checker.
fn checked_outcome(outcome: &OutcomeRequest) -> Outcome {
    match outcome.outcome {
        OutcomeKind::Finish => Outcome::Finish,
        OutcomeKind::Fail => {
            let retryable = outcome.error.as_ref().is_none_or(|error| error.retryable);
            Outcome::Fail { wait_ms: retryable.then_some(RETRY_MS) }
        }
        OutcomeKind::Cancel => Outcome::Cancel,
        OutcomeKind::Snooze => Outcome::Snooze { wait_ms: (outcome.delay_s.unwrap_or(0.0) * 1_000.0) as Millis },
        OutcomeKind::Release => Outcome::Release,
        OutcomeKind::Suspend | OutcomeKind::ContinueAs => unreachable!("the observed handlers do not suspend"),
    }
}
