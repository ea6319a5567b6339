//! Compensation: if a workflow fails, the undo steps of its finished steps run in reverse order, as ordinary steps.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;
use wire::{RawValue, code};

use super::replay::{Replay, decode};
use super::step::{Step, StepRetry};
use crate::queue::worker::handler::{Ending, HandlerError};

/// Attempts of an undo step, unless the step has its own policy.
const UNDO_ATTEMPTS: u32 = 5;

/// A finished step with the work that undoes it.
pub(crate) struct UndoStep {
    pub(super) key: String,
    pub(super) work: UndoWork,
    pub(super) retry: Option<StepRetry>,
}

/// The work that undoes a step, and the step's result.
pub(super) struct UndoWork {
    pub(super) result: Option<Box<RawValue>>,
    work: Box<Undo>,
}

/// Undoes a step, given its recorded result.
type Undo = dyn Fn(&RawValue) -> BoxFuture<'static, Result<(), HandlerError>> + Send + Sync;

pub(super) fn undo_work<T, F, Fut>(undo: F) -> UndoWork
where
    T: DeserializeOwned,
    F: Fn(T) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), HandlerError>> + Send + 'static,
{
    let work = move |result: &RawValue| -> BoxFuture<'static, Result<(), HandlerError>> {
        match decode("undo", Some(result)) {
            Ok(result) => Box::pin(undo(result)),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    };
    UndoWork { result: None, work: Box::new(work) }
}

/// True if the workflow fails with this error, so that no further attempt continues it. A handler that does not match
/// the journal any more undoes nothing.
pub(super) fn is_due(replay: &Replay, error: &HandlerError) -> bool {
    let is_last = replay.job.attempt() >= replay.job.max_attempts();
    match &error.0 {
        Ending::Fail { code, retryable, .. } => code != code::WORKFLOW_DRIFT && (!retryable || is_last),
        Ending::Cancel => !replay.job.cancellation().is_cancelled(),
        Ending::Snooze(_) | Ending::Suspend(_) | Ending::ContinueAs(_) => false,
    }
}

/// Runs the undo steps. One that fails does not keep the others from running. Returns the failures.
pub(super) async fn run(replay: &Arc<Replay>) -> Vec<String> {
    let mut failures = Vec::new();
    loop {
        let Some(UndoStep { key, work, retry }) = replay.lock().undo.pop() else { return failures };
        let result = work.result.unwrap_or_default();
        let name = format!("undo/{key}");
        let undo = Step::new(replay.clone(), &name, replay.undo_key(&key), || (work.work)(&result));
        let undone = undo.retry(retry.unwrap_or_else(|| StepRetry::attempts(UNDO_ATTEMPTS))).await;
        if let Err(HandlerError(Ending::Fail { code, message, .. })) = undone {
            tracing::warn!(job = %replay.job.id(), key, code, message, "an undo step failed");
            failures.push(format!("{name} failed: {code}: {message}"));
        }
    }
}

/// Adds failures of undo steps to the error of the workflow.
pub(super) fn explain(error: HandlerError, failures: Vec<String>) -> HandlerError {
    match error.0 {
        Ending::Fail { code, mut message, retryable, backoff } => {
            for failure in failures {
                message.push_str("; ");
                message.push_str(&failure);
            }
            HandlerError(Ending::Fail { code, message, retryable, backoff })
        }
        ending => HandlerError(ending),
    }
}
