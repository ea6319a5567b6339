//! Worker routes, and `Backend` over HTTP for `Worker`.

use std::time::Duration;

use bytes::Bytes;
use reqwest::{Method, RequestBuilder};
use uuid::Uuid;
use wire::{
    ArtifactView, ClaimRequest, ClaimView, ClaimedJournal, HeartbeatRequest, HeartbeatView, JobView, JournalRequest,
    JournalWritten, Page, RawValue, SettleRequest, SettleView, SignalUpdate, WorkerRegistered, WorkerRequest,
    WorkerView,
};

use crate::backend::{Backend, BackendError, HeldClaim};
use crate::client::{Client, unreachable};
use crate::error::ClientError;

impl Client {
    /// Returns one page of workers.
    pub async fn workers(&self, cursor: Option<&str>) -> Result<Page<WorkerView>, ClientError> {
        let query: Vec<_> = cursor.map(|cursor| ("cursor", cursor)).into_iter().collect();
        self.fetch(self.get(&["workers"]).query(&query)).await
    }

    /// Registers a worker.
    pub async fn register_worker(&self, request: &WorkerRequest) -> Result<WorkerRegistered, ClientError> {
        self.post(&["workers"], request).await
    }

    /// Asks a worker to finish its jobs and to claim no more.
    pub async fn drain_worker(&self, worker: Uuid) -> Result<(), ClientError> {
        self.execute(self.request(Method::POST, &["workers", &worker.to_string(), "drain"])).await
    }

    /// Renews the lease of a worker, and returns cancellations.
    pub async fn heartbeat(&self, worker: Uuid, request: &HeartbeatRequest) -> Result<HeartbeatView, ClientError> {
        let path = ["workers", &worker.to_string(), "heartbeat"];
        self.fetch_held(wait(request.wait_s), self.request(Method::POST, &path).json(request)).await
    }

    /// Claims jobs.
    pub async fn claim(&self, worker: Uuid, request: &ClaimRequest) -> Result<ClaimView, ClientError> {
        let path = ["workers", &worker.to_string(), "claim"];
        self.fetch_held(wait(request.wait_s), self.request(Method::POST, &path).json(request)).await
    }

    /// Records the outcomes of claimed jobs.
    pub async fn settle(&self, worker: Uuid, request: &SettleRequest) -> Result<SettleView, ClientError> {
        self.post(&["workers", &worker.to_string(), "settle"], request).await
    }

    /// Records operations in the journals of claimed jobs. They are durable when this returns.
    pub async fn journal(&self, worker: Uuid, request: &JournalRequest) -> Result<JournalWritten, ClientError> {
        self.post(&["workers", &worker.to_string(), "journal"], request).await
    }

    /// Removes a worker; its jobs return to their queues without using up an attempt.
    pub async fn remove_worker(&self, worker: Uuid) -> Result<(), ClientError> {
        self.execute(self.request(Method::DELETE, &["workers", &worker.to_string()])).await
    }
}

fn wait(seconds: Option<f64>) -> Duration {
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or_default()
}

/// Converts an error. A worker that the server does not know, for example after a restore, has no lease either.
fn of_worker(error: ClientError) -> BackendError {
    match error.code() {
        Some(wire::code::NOT_FOUND | wire::code::WORKER_GONE) => BackendError::LeaseExpired,
        _ => error.into(),
    }
}

/// Adds the header that names the claim which permits the read.
fn with_claim(request: RequestBuilder, HeldClaim { worker, job }: HeldClaim) -> RequestBuilder {
    request.header("X-Windlass-Claim", format!("{worker}/{job}"))
}

impl Backend for Client {
    async fn register(&self, request: WorkerRequest) -> Result<WorkerRegistered, BackendError> {
        Ok(self.register_worker(&request).await?)
    }

    async fn heartbeat(&self, worker: Uuid, request: HeartbeatRequest) -> Result<HeartbeatView, BackendError> {
        Client::heartbeat(self, worker, &request).await.map_err(of_worker)
    }

    async fn claim(&self, worker: Uuid, request: ClaimRequest) -> Result<ClaimView, BackendError> {
        Client::claim(self, worker, &request).await.map_err(of_worker)
    }

    async fn settle(&self, worker: Uuid, request: &SettleRequest) -> Result<SettleView, BackendError> {
        Client::settle(self, worker, request).await.map_err(of_worker)
    }

    async fn journal(&self, worker: Uuid, request: &JournalRequest) -> Result<JournalWritten, BackendError> {
        Client::journal(self, worker, request).await.map_err(of_worker)
    }

    async fn read_journal(&self, job: Uuid, cursor: Option<&str>) -> Result<ClaimedJournal, BackendError> {
        let page = self.job_journal(job, cursor).await?;
        Ok(ClaimedJournal { entries: page.items, next_cursor: page.next_cursor })
    }

    async fn read_result(&self, claim: HeldClaim, job: Uuid) -> Result<Option<Box<RawValue>>, BackendError> {
        let job: JobView = self.fetch(with_claim(self.get(&["jobs", &job.to_string()]), claim)).await?;
        Ok(job.result)
    }

    async fn read_artifact(&self, claim: HeldClaim, job: Uuid, name: &str) -> Result<Bytes, BackendError> {
        let request = self.get(&["jobs", &job.to_string(), "artifacts", name]);
        let response = self.send(with_claim(request, claim)).await?;
        Ok(response.bytes().await.map_err(unreachable)?)
    }

    async fn signal(&self, job: Uuid, update: SignalUpdate) -> Result<(), BackendError> {
        Ok(self.put_signal(job, &update).await?)
    }

    async fn put_artifact(
        &self,
        job: Uuid,
        epoch: i64,
        name: &str,
        content_type: &str,
        bytes: Bytes,
    ) -> Result<ArtifactView, BackendError> {
        Ok(Client::put_artifact(self, job, Some(epoch), name, content_type, bytes).await?)
    }

    async fn deregister(&self, worker: Uuid) -> Result<(), BackendError> {
        Ok(self.remove_worker(worker).await?)
    }
}
