//! What a worker needs from the other side, wherever that is: a server over HTTP, or an engine in the same process.
//!
//! `Client` implements it over HTTP; the `embedded` crate implements it on an engine. `Worker` runs on either.

use bytes::Bytes;
use uuid::Uuid;
use wire::{
    ArtifactView, ClaimRequest, ClaimView, HeartbeatRequest, HeartbeatView, Problem, SettleRequest, SettleView,
    SignalUpdate, WorkerRegistered, WorkerRequest,
};

pub trait Backend: Send + Sync + 'static {
    fn register(&self, request: WorkerRequest) -> impl Future<Output = Result<WorkerRegistered, BackendError>> + Send;

    /// Renews the lease at once; with `wait_s` it answers as soon as there is something to tell, or after that long.
    fn heartbeat(
        &self,
        worker: Uuid,
        request: HeartbeatRequest,
    ) -> impl Future<Output = Result<HeartbeatView, BackendError>> + Send;

    fn claim(
        &self,
        worker: Uuid,
        request: ClaimRequest,
    ) -> impl Future<Output = Result<ClaimView, BackendError>> + Send;

    /// Takes the request by reference, because it is sent again until there is an answer.
    fn settle(
        &self,
        worker: Uuid,
        request: &SettleRequest,
    ) -> impl Future<Output = Result<SettleView, BackendError>> + Send;

    fn signal(&self, job: Uuid, update: SignalUpdate) -> impl Future<Output = Result<(), BackendError>> + Send;

    fn put_artifact(
        &self,
        job: Uuid,
        epoch: i64,
        name: &str,
        content_type: &str,
        bytes: Bytes,
    ) -> impl Future<Output = Result<ArtifactView, BackendError>> + Send;

    /// Ends the worker. Claims it still has go back to the queue without burning an attempt.
    fn deregister(&self, worker: Uuid) -> impl Future<Output = Result<(), BackendError>> + Send;
}

/// Named for what a worker can do about it.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The worker's lease has passed (410): register anew.
    #[error("the worker's lease has passed")]
    Gone,
    /// Asking again changes nothing.
    #[error("the request was refused: {}", .0.detail)]
    Refused(Box<Problem>),
    /// Nothing was done; ask again later.
    #[error("the engine cannot be reached or cannot answer")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The request was sent and no answer came: it may have been done or not.
    #[error("the engine did not answer")]
    Unanswered(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl BackendError {
    /// The reason below this layer, for a log line.
    pub(crate) fn cause(&self) -> Option<String> {
        let mut source = std::error::Error::source(self)?;
        while let Some(deeper) = source.source() {
            source = deeper;
        }
        Some(source.to_string())
    }
}
