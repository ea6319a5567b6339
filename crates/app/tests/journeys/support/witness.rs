//! Stands between a worker and the server and writes down what each told the other.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use bytes::Bytes;
use client::wire::{
    ArtifactView, ClaimRequest, ClaimView, HeartbeatRequest, HeartbeatView, OutcomeKind, OutcomeRequest, OutcomeStatus,
    SettleRequest, SettleView, SignalUpdate, WorkerRegistered, WorkerRequest,
};
use client::{Backend, BackendError, Client, JobContext};
use testkit::history::{Answer, At, Event, Outcome};
use uuid::Uuid;

/// What jobs that may fail are told to wait between attempts.
pub(crate) const RETRY_MS: At = 1_000;

/// One claim of one job.
pub(crate) type Claim = (Uuid, i64);

/// The log, outside of everything that is killed.
#[derive(Default)]
pub(crate) struct Log {
    /// Claims whose handler was run, with the number of times.
    pub(crate) runs: HashMap<Claim, usize>,
    /// To whom a claim was handed.
    pub(crate) claimed_by: HashMap<Claim, HashSet<Uuid>>,
    /// Successes that the server acknowledged as applied, with the number of times.
    pub(crate) applied: HashMap<Claim, usize>,
    /// Successes that were told at least once without an answer.
    pub(crate) unanswered: HashSet<Claim>,
    /// Jobs whose handler runs now.
    running: HashSet<Uuid>,
    /// Jobs that two handlers ran at once.
    pub(crate) overlaps: Vec<Uuid>,
    /// All of it in the order of time, for the checker of histories.
    pub(crate) history: Vec<Event>,
    leases: HashMap<Uuid, At>,
}

#[derive(Clone)]
pub(crate) struct Witness {
    client: Client,
    log: Arc<Mutex<Log>>,
    since: Instant,
}

impl Witness {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, log: Arc::default(), since: Instant::now() }
    }

    /// The same log for whoever speaks to another node.
    pub(crate) fn beside(&self, client: Client) -> Self {
        Self { client, ..self.clone() }
    }

    /// Milliseconds since the log began.
    pub(crate) fn now(&self) -> At {
        self.since.elapsed().as_millis() as At
    }

    pub(crate) fn tell(&self, event: Event) {
        self.write(|log| log.history.push(event));
    }

    pub(crate) fn read<T>(&self, look: impl FnOnce(&Log) -> T) -> T {
        look(&self.log.lock().expect("nobody panics with the log in hand"))
    }

    fn write(&self, change: impl FnOnce(&mut Log)) {
        change(&mut self.log.lock().expect("nobody panics with the log in hand"));
    }

    /// What a handler calls when it begins; the job counts as running until the guard goes.
    pub(crate) fn ran(&self, job: &JobContext) -> Running {
        let id = job.id();
        self.write(|log| {
            *log.runs.entry((id, job.job().epoch)).or_default() += 1;
            if !log.running.insert(id) {
                log.overlaps.push(id);
            }
        });
        Running { witness: self.clone(), job: id }
    }

    pub(crate) fn applied(&self) -> usize {
        self.read(|log| log.applied.len())
    }
}

pub(crate) struct Running {
    witness: Witness,
    job: Uuid,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.witness.write(|log| {
            log.running.remove(&self.job);
        });
    }
}

/// Successes that are on their way to the server. A call that is given up gets no answer either.
struct Asking<'a> {
    witness: &'a Witness,
    claims: Vec<Claim>,
}

impl Asking<'_> {
    fn answered(mut self) {
        self.claims.clear();
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let claims = std::mem::take(&mut self.claims);
        self.witness.write(|log| log.unanswered.extend(claims));
    }
}

impl Backend for Witness {
    async fn register(&self, request: WorkerRequest) -> Result<WorkerRegistered, BackendError> {
        let asked = self.now();
        let registered = self.client.register(request).await?;
        let lease_ms = registered.lease_s as At * 1_000;
        self.write(|log| {
            log.leases.insert(registered.id, lease_ms);
            log.history.push(Event::Beat { worker: registered.id, asked, lease_ms });
        });
        Ok(registered)
    }

    async fn heartbeat(&self, worker: Uuid, request: HeartbeatRequest) -> Result<HeartbeatView, BackendError> {
        let asked = self.now();
        let told = Backend::heartbeat(&self.client, worker, request).await?;
        self.write(|log| {
            let lease_ms = log.leases.get(&worker).copied().unwrap_or_default();
            log.history.push(Event::Beat { worker, asked, lease_ms });
        });
        Ok(told)
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
        let told = |outcome: &OutcomeRequest, answer, at| Event::Settled {
            job: outcome.job_id,
            epoch: outcome.epoch,
            worker,
            outcome: meaning(outcome),
            answer,
            asked,
            at,
        };
        let asking = request.outcomes.iter().map(|outcome| told(outcome, Answer::None, asked));
        self.write(|log| log.history.extend(asking));
        let finished = request.outcomes.iter().filter(|outcome| outcome.outcome == OutcomeKind::Finish);
        let claims = finished.map(|outcome| (outcome.job_id, outcome.epoch)).collect();
        let asking = Asking { witness: self, claims };
        let view = Backend::settle(&self.client, worker, request).await?;
        asking.answered();
        let at = self.now();
        self.write(|log| {
            let applied = |status| if status == OutcomeStatus::Applied { Answer::Applied } else { Answer::Refused };
            let pairs = request.outcomes.iter().zip(&view.results);
            log.history.extend(pairs.map(|(outcome, result)| told(outcome, applied(result.status), at)));
            for (outcome, result) in request.outcomes.iter().zip(&view.results) {
                assert_eq!(outcome.job_id, result.job_id, "results come in the order of the outcomes");
                if outcome.outcome == OutcomeKind::Finish && result.status == OutcomeStatus::Applied {
                    *log.applied.entry((outcome.job_id, outcome.epoch)).or_default() += 1;
                }
            }
        });
        Ok(view)
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
        self.tell(Event::Left { worker, asked: self.now() });
        self.client.deregister(worker).await
    }
}

/// What an outcome promises.
fn meaning(outcome: &OutcomeRequest) -> Outcome {
    match outcome.outcome {
        OutcomeKind::Finish => Outcome::Finish,
        OutcomeKind::Fail => {
            let retryable = outcome.error.as_ref().is_none_or(|error| error.retryable);
            Outcome::Fail { wait_ms: retryable.then_some(RETRY_MS) }
        }
        OutcomeKind::Cancel => Outcome::Cancel,
        OutcomeKind::Snooze => Outcome::Snooze { wait_ms: (outcome.delay_s.unwrap_or(0.0) * 1_000.0) as At },
        OutcomeKind::Release => Outcome::Release,
    }
}
