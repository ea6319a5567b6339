//! The jobs and workers of a `TestServer`: what a claim, an outcome, a journal write and the passing of time do to them.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use uuid::Uuid;
use wire::{
    ClaimedJob, ClaimedJournal, JobError, JobRequest, JournalRequest, JournalResult, JournalWritten, OutcomeKind,
    OutcomeRequest, OutcomeStatus, RawValue, code,
};

use super::journal::{SideEffect, TestJournal, problem, raw};
use super::server::TestJobState;
use crate::backend::BackendError;

/// Delay of a failed attempt, in virtual time.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Attempts of a job, unless its request sets them.
const MAX_ATTEMPTS: i64 = 3;

pub(super) struct ServerState {
    pub(super) now: Timestamp,
    pub(super) jobs: BTreeMap<Uuid, StoredTestJob>,
    pub(super) workers: BTreeMap<Uuid, WorkerFilter>,
    pub(super) published: Vec<(String, Value)>,
    pub(super) artifacts: BTreeMap<(Uuid, String), Bytes>,
    pub(super) next_id: u128,
    pub(super) outcomes: usize,
    /// Number of operations of each journal request that was answered.
    pub(super) writes: Vec<usize>,
    /// Requests with an operation of this key are refused.
    pub(super) refused_key: Option<String>,
}

pub(super) struct StoredTestJob {
    pub(super) request: JobRequest,
    pub(super) state: TestJobState,
    pub(super) run_at: Timestamp,
    pub(super) attempt: i64,
    pub(super) epoch: i64,
    pub(super) result: Option<Box<RawValue>>,
    pub(super) error: Option<JobError>,
    pub(super) journal: TestJournal,
    pub(super) wake: Vec<String>,
}

pub(super) fn later(now: Timestamp, duration: Duration) -> Timestamp {
    let duration = SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
    now.saturating_add(duration).unwrap_or(Timestamp::MAX)
}

impl ServerState {
    pub(super) fn new() -> Self {
        let now = Timestamp::from_second(1_893_456_000).expect("a time");
        Self {
            now,
            jobs: BTreeMap::new(),
            workers: BTreeMap::new(),
            published: Vec::new(),
            artifacts: BTreeMap::new(),
            next_id: 1,
            outcomes: 0,
            writes: Vec::new(),
            refused_key: None,
        }
    }

    pub(super) fn enqueue(&mut self, request: JobRequest) -> Uuid {
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
    pub(super) fn is_busy(&self) -> bool {
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
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        let live = self.jobs.values().filter(|job| !job.state.has_ended() && self.has_worker_for(job));
        live.filter_map(|job| match job.state {
            TestJobState::Queued => Some(job.run_at),
            _ => job.journal.next_due(),
        })
        .min()
    }

    pub(super) fn pass_to(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
        for job in self.jobs.values_mut().filter(|job| !job.state.has_ended()) {
            job.journal.resolve_due(self.now);
        }
    }

    /// Resolves waits for children, and queues suspended jobs when their wait is resolved.
    pub(super) fn wake(&mut self) {
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

    pub(super) fn claim(&mut self, worker: Uuid, max: usize) -> Vec<ClaimedJob> {
        let now = self.now;
        let Some(worker) = self.workers.get(&worker) else { return Vec::new() };
        let is_ready = |job: &StoredTestJob| {
            job.state == TestJobState::Queued && job.run_at <= now && worker.accepts(&job.request)
        };
        let ready = self.jobs.iter_mut().filter(|(_, job)| is_ready(job)).take(max);
        ready.map(|(id, job)| job.claim(*id, now)).collect()
    }

    pub(super) fn settle(&mut self, outcome: &OutcomeRequest) -> OutcomeStatus {
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

    pub(super) fn journal(&mut self, request: &JournalRequest) -> Result<JournalWritten, BackendError> {
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
pub(super) struct WorkerFilter {
    pub(super) queues: Vec<String>,
    pub(super) kinds: Option<Vec<String>>,
}

impl WorkerFilter {
    fn accepts(&self, request: &JobRequest) -> bool {
        self.queues.contains(&request.queue) && self.kinds.as_ref().is_none_or(|kinds| kinds.contains(&request.kind))
    }
}
