//! The operations that a worker needs: implemented by `Client` over HTTP and by the `embedded` crate on an engine in
//! the same process.

use bytes::Bytes;
use uuid::Uuid;
use wire::{
    ArtifactView, ClaimRequest, ClaimView, ClaimedJournal, HeartbeatRequest, HeartbeatView, JournalRequest,
    JournalWritten, Problem, RawValue, SettleRequest, SettleView, SignalUpdate, WorkerRegistered, WorkerRequest,
};

/// A claim. Its holder reads what the handler of the claimed job refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldClaim {
    /// The worker that holds it.
    pub worker: Uuid,
    /// The claimed job.
    pub job: Uuid,
}

/// What a worker needs from a server or an engine.
pub trait Backend: Send + Sync + 'static {
    /// Registers the worker.
    fn register(&self, request: WorkerRequest) -> impl Future<Output = Result<WorkerRegistered, BackendError>> + Send;

    /// Renews the lease immediately. With `wait_s`, the call returns when a cancellation or a drain is requested, or
    /// after that time.
    fn heartbeat(
        &self,
        worker: Uuid,
        request: HeartbeatRequest,
    ) -> impl Future<Output = Result<HeartbeatView, BackendError>> + Send;

    /// Claims jobs. With `wait_s`, the call returns when there is one, or after that time.
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

    /// Records operations in the journals of claimed jobs. They are durable when this returns. Takes the request by
    /// reference, because it is sent again until there is a response.
    fn journal(
        &self,
        worker: Uuid,
        request: &JournalRequest,
    ) -> impl Future<Output = Result<JournalWritten, BackendError>> + Send;

    /// Returns one page of the journal of a job: the first one, or the one that a cursor names.
    fn read_journal(
        &self,
        job: Uuid,
        cursor: Option<&str>,
    ) -> impl Future<Output = Result<ClaimedJournal, BackendError>> + Send;

    /// Returns the result of a job that the claimed job needs or has started, if it is too large for the claim.
    fn read_result(
        &self,
        claim: HeldClaim,
        job: Uuid,
    ) -> impl Future<Output = Result<Option<Box<RawValue>>, BackendError>> + Send;

    /// Returns the content of an artifact to which the journal of the claimed job refers.
    fn read_artifact(
        &self,
        claim: HeldClaim,
        job: Uuid,
        name: &str,
    ) -> impl Future<Output = Result<Bytes, BackendError>> + Send;

    /// Refines the signal of a job.
    fn signal(&self, job: Uuid, update: SignalUpdate) -> impl Future<Output = Result<(), BackendError>> + Send;

    /// Stores a named blob with a claimed job.
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
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The worker's lease has expired (410): register again.
    #[error("the worker's lease has expired")]
    LeaseExpired,
    /// The request was rejected; repeating it is pointless.
    #[error("the request was rejected: {}", .0.detail)]
    Refused(Box<Problem>),
    /// A quota or a limit on requests is exhausted. Nothing was changed; retry later.
    #[error("a limit is exhausted: {}", .0.detail)]
    Throttled(Box<Problem>),
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
