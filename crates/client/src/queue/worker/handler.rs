//! Handlers and their errors.

use std::any::Any;
use std::error::Error;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::Serialize;
use wire::{JobError, RawValue};

use super::bounds::check_result;
use super::context::JobContext;

pub(crate) type Verdict = Result<Option<Box<RawValue>>, HandlerError>;
pub(super) type Handler = Arc<dyn Fn(JobContext) -> BoxFuture<'static, Verdict> + Send + Sync>;
pub(super) type Loader = Arc<dyn Fn(String) -> BoxFuture<'static, Result<(), HandlerError>> + Send + Sync>;

/// The reason why an attempt did not succeed.
///
/// Any error converts to a retryable failure, so `?` works in handlers. Like `anyhow::Error`, this type is not itself a
/// `std::error::Error`, because that conversion would then overlap.
#[derive(Debug, Clone, PartialEq)]
pub struct HandlerError(pub(crate) Ending);

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Ending {
    Fail {
        code: String,
        message: String,
        retryable: bool,
        backoff: Option<Duration>,
    },
    Snooze(Duration),
    Cancel,
    /// A workflow waits until one of these entries of its journal is resolved.
    Suspend(Vec<String>),
    /// A workflow continues in a new job with this payload.
    ContinueAs(String),
}

impl HandlerError {
    /// The attempt failed; another attempt may succeed.
    pub fn retryable(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self(Ending::Fail { code: code.into(), message: message.into(), retryable: true, backoff: None })
    }

    /// The job can never succeed; it fails immediately.
    pub fn permanent(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self(Ending::Fail { code: code.into(), message: message.into(), retryable: false, backoff: None })
    }

    /// Leaves the job's subject alone for `backoff`, and delays the next attempt until then, instead of the policy of the
    /// process or the job. No effect on a snooze or a cancellation.
    pub fn with_backoff(mut self, duration: Duration) -> Self {
        if let Ending::Fail { backoff, .. } = &mut self.0 {
            *backoff = Some(duration);
        }
        self
    }

    /// Run the job again after `delay`, without using up an attempt.
    pub fn snooze(delay: Duration) -> Self {
        Self(Ending::Snooze(delay))
    }

    /// The job was canceled: returned after the cancellation token was cancelled, or to give up the job permanently.
    pub fn cancel() -> Self {
        Self(Ending::Cancel)
    }

    /// The failure as it is recorded. An error that is not a failure has the code of its outcome.
    pub fn to_job_error(&self) -> JobError {
        let of = |code: &str| JobError { code: code.into(), message: String::new(), retryable: true };
        match &self.0 {
            Ending::Fail { code, message, retryable, .. } => {
                JobError { code: code.clone(), message: message.clone(), retryable: *retryable }
            }
            Ending::Snooze(_) => of("snooze"),
            Ending::Cancel => of("cancel"),
            Ending::Suspend(_) => of("suspend"),
            Ending::ContinueAs(_) => of("continue_as"),
        }
    }

    pub(crate) fn suspend(keys: Vec<String>) -> Self {
        Self(Ending::Suspend(keys))
    }

    pub(crate) fn continue_as(payload: String) -> Self {
        Self(Ending::ContinueAs(payload))
    }

    pub(super) fn panic(cause: &(dyn Any + Send)) -> Self {
        let message = cause.downcast_ref::<&str>().copied();
        let message = message.or_else(|| cause.downcast_ref::<String>().map(String::as_str));
        Self::retryable("panic", message.unwrap_or("The handler panicked."))
    }
}

impl<E: Error> From<E> for HandlerError {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            message.push_str(": ");
            message.push_str(&cause.to_string());
            source = cause.source();
        }
        Self::retryable("error", message)
    }
}

pub(super) fn handler<F, Fut, T>(handler: F) -> Handler
where
    F: Fn(JobContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, HandlerError>> + Send + 'static,
    T: Serialize + 'static,
{
    let handler = Arc::new(handler);
    Arc::new(move |context| {
        let handler = handler.clone();
        Box::pin(async move { verdict_of(handler(context).await) })
    })
}

/// Encodes the result of a handler.
pub(crate) fn verdict_of(result: Result<impl Serialize, HandlerError>) -> Verdict {
    let result = serde_json::value::to_raw_value(&result?)
        .map_err(|error| HandlerError::permanent("result_not_json", error.to_string()))?;
    check_result(&result)?;
    Ok(Some(result).filter(|result| result.get() != "null"))
}

/// Runs a handler and converts a panic to an error.
pub(crate) async fn guarded<T>(work: impl Future<Output = Result<T, HandlerError>>) -> Result<T, HandlerError> {
    // State that the panic left inconsistent belongs to this attempt and is dropped with it.
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(result) => result,
        Err(cause) => Err(HandlerError::panic(&*cause)),
    }
}
