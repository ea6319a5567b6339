//! The operations that a worker needs: implemented by `Client` over HTTP and by the `embedded` crate on an engine in
//! the same process.

use bytes::Bytes;
use uuid::Uuid;
use wire::{
    ArtifactView, ClaimRequest, ClaimView, HeartbeatRequest, HeartbeatView, Problem, SettleRequest, SettleView,
    SignalUpdate, WorkerRegistered, WorkerRequest,
};

pub trait Backend: Send + Sync + 'static {
    fn register(&self, request: WorkerRequest) -> impl Future<Output = Result<WorkerRegistered, BackendError>> + Send;

    /// Renews the lease immediately. With `wait_s`, the call returns when a cancellation or a drain is requested, or
    /// after that time.
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

    /// Takes the request by reference, because it is sent again until there is a response.
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

    /// Removes the worker. Its claims return to the queue without using up an attempt.
    fn deregister(&self, worker: Uuid) -> impl Future<Output = Result<(), BackendError>> + Send;
}

/// Errors, named for what a worker can do about them.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The worker's lease has expired (410): register again.
    #[error("the worker's lease has expired")]
    LeaseExpired,
    /// The request was rejected; repeating it is pointless.
    #[error("the request was rejected: {}", .0.detail)]
    Refused(Box<Problem>),
    /// Nothing was changed; retry later.
    #[error("the engine is unreachable or unavailable")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The request was sent and no response arrived; it may or may not have been applied.
    #[error("no response from the engine")]
    Unanswered(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl BackendError {
    /// The innermost cause, for a log line.
    pub(crate) fn cause(&self) -> Option<String> {
        let mut source = std::error::Error::source(self)?;
        while let Some(deeper) = source.source() {
            source = deeper;
        }
        Some(source.to_string())
    }
}
