//! Children: jobs that a workflow starts. It awaits their results.

use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;
use wire::{JobError, JobRequest, JournalOp, JournalOperation, RawValue};

use super::digest::digest;
use super::large_result::until_answered;
use super::replay::{Expected, Outcome, Replay, decode};
use crate::queue::worker::handler::HandlerError;

type ChildrenFuture<T> = Pin<Box<dyn Future<Output = Result<T, HandlerError>> + Send>>;

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ChildState {
    /// The child has a result.
    Succeeded,
    /// The child has an error.
    Failed,
    /// The child was canceled.
    Canceled,
}

/// The end of one child.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ChildOutcome<T> {
    /// The job's id.
    pub job: Uuid,
    /// How it ended.
    pub state: ChildState,
    /// The result of a succeeded child.
    pub result: Option<T>,
    /// The error of a failed child.
    pub error: Option<JobError>,
}

impl<T> ChildOutcome<T> {
    /// The result, or an error that names the child.
    pub fn into_result(self) -> Result<T, HandlerError> {
        let job = self.job;
        let cause = match (self.result, self.error) {
            (Some(result), _) => return Ok(result),
            (None, Some(JobError { code, message, .. })) => format!("failed with {code}: {message}"),
            (None, None) => "was canceled".to_owned(),
        };
        Err(HandlerError::permanent("child_failed", format!("The child {job} {cause}")))
    }
}

/// One child as the journal has it.
#[derive(Deserialize)]
struct RecordedChild {
    job_id: Uuid,
    state: ChildState,
    #[serde(default)]
    result: Option<Box<RawValue>>,
    #[serde(default)]
    error: Option<JobError>,
    #[serde(default)]
    truncated: bool,
}

/// Jobs to start. Await it to start them and to get their results in order.
#[must_use = "the jobs start when this is awaited"]
pub struct Gather<T> {
    replay: Arc<Replay>,
    key: String,
    requests: Vec<Result<JobRequest, serde_json::Error>>,
    results: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned + Send + 'static> Gather<T> {
    pub(super) fn new(replay: Arc<Replay>, key: String, requests: Vec<Result<JobRequest, serde_json::Error>>) -> Self {
        Self { replay, key, requests, results: PhantomData }
    }

    /// Starts the jobs, and returns when they are durable. Await the answer for their results.
    pub async fn start(self) -> Result<StartedChildren<T>, HandlerError> {
        let jobs = self.requests.into_iter().collect::<Result<Vec<_>, _>>()?;
        let replay = self.replay;
        if jobs.is_empty() {
            return Ok(StartedChildren { replay, expected: None, results: PhantomData });
        }
        let hash = digest(JournalOp::Child, &self.key, &jobs)?;
        let expected = replay.expect(&self.key, JournalOp::Child, &hash)?;
        let is_known = expected.recorded.as_ref().is_some_and(|recorded| !recorded.has_drifted);
        if !is_known {
            if expected.recorded.is_none() {
                replay.begin_operation().await;
            }
            expected.awaiting.expect_record();
            replay.submit(JournalOperation {
                op: JournalOp::Child,
                key: self.key,
                hash: Some(hash),
                jobs: Some(jobs),
                ..JournalOperation::default()
            });
            if expected.recorded.is_none() {
                expected.awaiting.recorded().await?;
            }
        }
        Ok(StartedChildren { replay, expected: Some(expected), results: PhantomData })
    }

    /// Starts the jobs, and returns how each of them ended, also if some failed.
    pub async fn outcomes(self) -> Result<Vec<ChildOutcome<T>>, HandlerError> {
        self.start().await?.outcomes().await
    }
}

impl<T: DeserializeOwned + Send + 'static> IntoFuture for Gather<T> {
    type Output = Result<Vec<T>, HandlerError>;
    type IntoFuture = ChildrenFuture<Vec<T>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.start().await?.await })
    }
}

/// Jobs that were started. Await it to get their results in order.
#[must_use = "await the children to get their results"]
pub struct StartedChildren<T> {
    replay: Arc<Replay>,
    /// `None`: there are no children.
    expected: Option<Expected>,
    results: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned + Send + 'static> StartedChildren<T> {
    /// Waits until all jobs have ended, and returns how each of them ended.
    pub async fn outcomes(self) -> Result<Vec<ChildOutcome<T>>, HandlerError> {
        let Some(expected) = self.expected else { return Ok(Vec::new()) };
        let outcome: Outcome = expected.awaiting.resolved().await?;
        let recorded: Vec<RecordedChild> = outcome.decode()?;
        let mut outcomes = Vec::with_capacity(recorded.len());
        for RecordedChild { job_id: job, state, mut result, error, truncated } in recorded {
            if truncated {
                let _reading = self.replay.activity();
                let read = || self.replay.job.uplink().read_result(self.replay.job.claim(), job);
                result = until_answered(&self.replay, read).await?;
            }
            let result = match state {
                ChildState::Succeeded => Some(decode(expected.awaiting.key(), result.as_deref())?),
                ChildState::Failed | ChildState::Canceled => None,
            };
            outcomes.push(ChildOutcome { job, state, result, error });
        }
        Ok(outcomes)
    }
}

impl<T: DeserializeOwned + Send + 'static> IntoFuture for StartedChildren<T> {
    type Output = Result<Vec<T>, HandlerError>;
    type IntoFuture = ChildrenFuture<Vec<T>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.outcomes().await?.into_iter().map(ChildOutcome::into_result).collect() })
    }
}

/// A job to start. Await it to start it and to get its result.
#[must_use = "the job starts when this is awaited"]
pub struct Spawn<T>(Gather<T>);

impl<T: DeserializeOwned + Send + 'static> Spawn<T> {
    pub(super) fn new(children: Gather<T>) -> Self {
        Self(children)
    }

    /// Starts the job, and returns when it is durable. Await the answer for its result.
    pub async fn start(self) -> Result<StartedChild<T>, HandlerError> {
        self.0.start().await.map(StartedChild)
    }

    /// Starts the job, and returns how it ended, also if it failed.
    pub async fn outcome(self) -> Result<ChildOutcome<T>, HandlerError> {
        self.start().await?.outcome().await
    }
}

impl<T: DeserializeOwned + Send + 'static> IntoFuture for Spawn<T> {
    type Output = Result<T, HandlerError>;
    type IntoFuture = ChildrenFuture<T>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.outcome().await?.into_result() })
    }
}

/// A job that was started. Await it to get its result.
#[must_use = "await the child to get its result"]
pub struct StartedChild<T>(StartedChildren<T>);

impl<T: DeserializeOwned + Send + 'static> StartedChild<T> {
    /// Waits until the job has ended, and returns how.
    pub async fn outcome(self) -> Result<ChildOutcome<T>, HandlerError> {
        let outcome = self.0.outcomes().await?.pop();
        outcome.ok_or_else(|| HandlerError::permanent(wire::code::WORKFLOW_DRIFT, "The journal has no such child."))
    }
}

impl<T: DeserializeOwned + Send + 'static> IntoFuture for StartedChild<T> {
    type Output = Result<T, HandlerError>;
    type IntoFuture = ChildrenFuture<T>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.outcome().await?.into_result() })
    }
}
