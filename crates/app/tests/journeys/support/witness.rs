//! Stands between a worker and the server and writes down what each told the other.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use client::wire::{
    ArtifactView, ClaimRequest, ClaimView, HeartbeatRequest, HeartbeatView, OutcomeKind, OutcomeStatus, SettleRequest,
    SettleView, SignalUpdate, WorkerRegistered, WorkerRequest,
};
use client::{Backend, BackendError, Client, JobContext};
use uuid::Uuid;

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
}

#[derive(Clone)]
pub(crate) struct Witness {
    client: Client,
    log: Arc<Mutex<Log>>,
}

impl Witness {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, log: Arc::default() }
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

impl Backend for Witness {
    async fn register(&self, request: WorkerRequest) -> Result<WorkerRegistered, BackendError> {
        self.client.register(request).await
    }

    async fn heartbeat(&self, worker: Uuid, request: HeartbeatRequest) -> Result<HeartbeatView, BackendError> {
        Backend::heartbeat(&self.client, worker, request).await
    }

    async fn claim(&self, worker: Uuid, request: ClaimRequest) -> Result<ClaimView, BackendError> {
        let claimed = Backend::claim(&self.client, worker, request).await?;
        self.write(|log| {
            for job in &claimed.jobs {
                log.claimed_by.entry((job.id, job.epoch)).or_default().insert(worker);
            }
        });
        Ok(claimed)
    }

    async fn settle(&self, worker: Uuid, request: &SettleRequest) -> Result<SettleView, BackendError> {
        let answer = Backend::settle(&self.client, worker, request).await;
        let finished = || request.outcomes.iter().filter(|outcome| outcome.outcome == OutcomeKind::Finish);
        self.write(|log| match &answer {
            Ok(view) => {
                for (outcome, result) in request.outcomes.iter().zip(&view.results) {
                    assert_eq!(outcome.job_id, result.job_id, "results come in the order of the outcomes");
                    if outcome.outcome == OutcomeKind::Finish && result.status == OutcomeStatus::Applied {
                        *log.applied.entry((outcome.job_id, outcome.epoch)).or_default() += 1;
                    }
                }
            }
            Err(_) => log.unanswered.extend(finished().map(|outcome| (outcome.job_id, outcome.epoch))),
        });
        answer
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
        self.client.deregister(worker).await
    }
}
