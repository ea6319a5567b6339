//! The calls of a worker to a `TestServer`.

use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use tokio::time::timeout;
use uuid::Uuid;
use wire::{
    ArtifactView, ClaimRequest, ClaimView, ClaimedJournal, HeartbeatRequest, HeartbeatView, JournalRequest,
    JournalWritten, OutcomeView, RawValue, SettleRequest, SettleView, SignalUpdate, WorkerRegistered, WorkerRequest,
    code,
};

use super::journal::problem;
use super::server::{TestJobState, TestServer};
use super::state::WorkerFilter;
use crate::backend::{Backend, BackendError, HeldClaim};

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
                let changed = self.changed().notified();
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

    async fn read_result(&self, _claim: HeldClaim, job: Uuid) -> Result<Option<Box<RawValue>>, BackendError> {
        Ok(self.lock().jobs.get(&job).and_then(|job| job.result.clone()))
    }

    async fn read_artifact(&self, _claim: HeldClaim, job: Uuid, name: &str) -> Result<Bytes, BackendError> {
        let bytes = self.lock().artifacts.get(&(job, name.to_owned())).cloned();
        bytes.ok_or_else(|| BackendError::Refused(problem(404, code::NOT_FOUND, "the job has no such artifact")))
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
