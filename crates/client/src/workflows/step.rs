//! Steps: work of the handler with a recorded result.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::to_raw_value;
use wire::{JobError, JournalOp, JournalOperation, RawValue};

use super::digest::digest;
use super::large_result;
use super::replay::{Expected, Replay};
use super::undo::UndoStep;
use crate::queue::worker::handler::{Ending, HandlerError};

type Work<'a, T> = Box<dyn FnMut() -> BoxFuture<'a, Result<T, HandlerError>> + Send + 'a>;

/// Attempts of a step within one attempt of its job.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct StepRetry {
    /// Maximum number of attempts. The error of the last one is the result of the step.
    pub attempts: u32,
    /// Wait before the second attempt.
    pub initial: Duration,
    /// The factor by which each wait grows.
    pub exponent: f64,
    /// The longest wait.
    pub maximum: Duration,
}

impl StepRetry {
    /// Attempts with waits of 1 s, 2 s, 4 s and so on, at most 1 min.
    pub fn attempts(attempts: u32) -> Self {
        Self {
            attempts: attempts.max(1),
            initial: Duration::from_secs(1),
            exponent: 2.0,
            maximum: Duration::from_secs(60),
        }
    }

    /// Sets the wait before the second attempt.
    pub fn initial(mut self, initial: Duration) -> Self {
        self.initial = initial;
        self
    }

    /// Sets the factor by which each wait grows.
    pub fn exponent(mut self, exponent: f64) -> Self {
        self.exponent = exponent;
        self
    }

    /// Sets the longest wait.
    pub fn maximum(mut self, maximum: Duration) -> Self {
        self.maximum = maximum;
        self
    }

    /// The wait after a number of failed attempts.
    fn wait(&self, failed: i64) -> Duration {
        let doublings = i32::try_from(failed - 1).unwrap_or(i32::MAX);
        let seconds = self.initial.as_secs_f64() * self.exponent.max(1.0).powi(doublings);
        Duration::try_from_secs_f64(seconds).unwrap_or(self.maximum).min(self.maximum)
    }
}

/// A step that is not awaited yet. Await it to run it.
#[must_use = "a step runs when it is awaited"]
pub struct Step<'a, T> {
    replay: Arc<Replay>,
    name: String,
    key: String,
    work: Work<'a, T>,
    input: Result<Option<Box<RawValue>>, serde_json::Error>,
    retry: Option<StepRetry>,
    undo: Option<super::undo::UndoWork>,
}

impl<'a, T> Step<'a, T>
where
    T: Serialize + DeserializeOwned + Send + 'static,
{
    pub(super) fn new<F, Fut>(replay: Arc<Replay>, name: &str, key: String, mut work: F) -> Self
    where
        F: FnMut() -> Fut + Send + 'a,
        Fut: Future<Output = Result<T, HandlerError>> + Send + 'a,
    {
        let work: Work<'a, T> = Box::new(move || Box::pin(work()));
        Self { replay, name: name.to_owned(), key, work, input: Ok(None), retry: None, undo: None }
    }

    /// Adds the input to the digest of the step. A recorded step that is met with another input is reported as drift.
    pub fn input(mut self, input: &impl Serialize) -> Self {
        self.input = to_raw_value(input).map(Some);
        self
    }

    /// Repeats the step after a retryable error. Without this, such an error fails the attempt of the job.
    pub fn retry(mut self, retry: StepRetry) -> Self {
        self.retry = Some(retry);
        self
    }

    /// Registers how to undo the step. If the workflow fails, the undo steps of all finished steps run in reverse order
    /// as steps `undo/KEY`, with the recorded results.
    pub fn undo<F, Fut>(mut self, undo: F) -> Self
    where
        F: Fn(T) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), HandlerError>> + Send + 'static,
    {
        self.undo = Some(super::undo::undo_work(undo));
        self
    }

    async fn run(mut self) -> Result<T, HandlerError> {
        let input = std::mem::replace(&mut self.input, Ok(None))?;
        let hash = digest(JournalOp::Step, &self.name, &input)?;
        let Expected { awaiting, recorded } = self.replay.expect(&self.key, JournalOp::Step, &hash)?;
        let operation = |key: &str| JournalOperation {
            op: JournalOp::Step,
            key: key.to_owned(),
            hash: Some(hash.clone()),
            ..JournalOperation::default()
        };
        let mut failed = recorded.as_ref().map_or(0, |recorded| recorded.attempt);
        // What this attempt recorded: the answer of the server omits it.
        let mut own = None;
        match recorded {
            Some(recorded) if recorded.is_resolved => {
                if recorded.has_drifted {
                    // The server answers with the record and warns of the drift.
                    let result = Some(to_raw_value(&())?);
                    self.replay.submit(JournalOperation { result, ..operation(awaiting.key()) });
                }
            }
            _ => loop {
                self.replay.begin_operation().await;
                let activity = self.replay.activity();
                let started = Instant::now();
                let result = (self.work)().await;
                let duration_ms = i64::try_from(started.elapsed().as_millis()).ok();
                let attempt = Some(failed + 1);
                let done = JournalOperation { attempt, duration_ms, ..operation(awaiting.key()) };
                let error = match result {
                    Ok(finished) => {
                        let result = to_raw_value(&finished)
                            .map_err(|error| HandlerError::permanent("result_not_json", error.to_string()))?;
                        if let Some(undo) = &mut self.undo {
                            undo.result = Some(result.clone());
                        }
                        let result = large_result::store(&self.replay, awaiting.key(), failed + 1, result).await?;
                        own = Some(Ok(finished));
                        self.replay.submit(JournalOperation { result: Some(result), ..done });
                        break;
                    }
                    Err(error) => error,
                };
                let Ending::Fail { code, message, retryable, backoff } = &error.0 else { return Err(error) };
                let is_last = self.retry.is_some_and(|retry| failed + 1 >= i64::from(retry.attempts));
                let is_final = !retryable || is_last;
                let recorded = JobError { code: code.clone(), message: message.clone(), retryable: !is_final };
                own = is_final.then(|| Err(HandlerError::permanent(code, message)));
                awaiting.expect_record();
                self.replay.submit(JournalOperation { error: Some(recorded), ..done });
                if is_final {
                    break;
                }
                awaiting.recorded().await?;
                failed += 1;
                let Some(retry) = self.retry else { return Err(error) };
                tokio::time::sleep(backoff.unwrap_or_else(|| retry.wait(failed))).await;
                drop(activity);
            },
        }
        let mut outcome = awaiting.resolved().await?;
        let own = own.filter(|_| !outcome.existed);
        if own.is_none() {
            let _reading = self.replay.activity();
            outcome.result = large_result::load(&self.replay, outcome.result).await?;
        }
        let has_succeeded = own.as_ref().map_or(outcome.error.is_none(), Result::is_ok);
        if let Some(mut undo) = self.undo.take().filter(|_| has_succeeded) {
            if outcome.existed || undo.result.is_none() {
                undo.result = outcome.result.clone();
            }
            let key = awaiting.key().to_owned();
            self.replay.lock().undo.push(UndoStep { key, work: undo, retry: self.retry });
        }
        if let Some(error) = &mut outcome.error {
            error.retryable = false;
        }
        own.unwrap_or_else(|| outcome.decode())
    }
}

impl<'a, T> IntoFuture for Step<'a, T>
where
    T: Serialize + DeserializeOwned + Send + 'static,
{
    type Output = Result<T, HandlerError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_up_to_the_maximum() {
        let retry = StepRetry::attempts(9).initial(Duration::from_secs(2)).maximum(Duration::from_secs(10));
        let waits: Vec<u64> = [1, 2, 3, 4, 9_000].map(|failed| retry.wait(failed).as_secs()).into();
        assert_eq!(waits, [2, 4, 8, 10, 10]);
    }
}
