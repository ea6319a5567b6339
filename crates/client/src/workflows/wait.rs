//! Waits: sleeps, signal events and approvals. A workflow that awaits nothing else is suspended.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use wire::{ApprovalView, EventsSince, JournalOp, JournalOperation, Timestamp};

use super::digest::digest;
use super::replay::{Outcome, Replay};
use crate::queue::worker::handler::HandlerError;

type WaitFuture<T> = Pin<Box<dyn Future<Output = Result<T, HandlerError>> + Send>>;

/// Records a wait, and waits until it is resolved. `input` identifies it in the digest.
async fn wait_for(
    replay: Arc<Replay>,
    name: &str,
    input: &impl Serialize,
    operation: JournalOperation,
) -> Result<Outcome, HandlerError> {
    let hash = digest(operation.op, name, input)?;
    let expected = replay.expect(&operation.key, operation.op, &hash)?;
    if expected.recorded.is_none() {
        replay.begin_operation().await;
    }
    if expected.recorded.is_none_or(|recorded| recorded.has_drifted) {
        replay.submit(JournalOperation { hash: Some(hash), ..operation });
    }
    expected.awaiting.resolved().await
}

/// A sleep. Await it.
#[must_use = "a sleep begins when it is awaited"]
pub struct Sleep {
    replay: Arc<Replay>,
    key: String,
    end: Result<Duration, Timestamp>,
}

impl Sleep {
    pub(super) fn new(replay: Arc<Replay>, key: String, end: Result<Duration, Timestamp>) -> Self {
        Self { replay, key, end }
    }
}

impl IntoFuture for Sleep {
    type Output = Result<(), HandlerError>;
    type IntoFuture = WaitFuture<()>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let (for_s, until) = match self.end {
                Ok(duration) => (Some(duration.as_secs_f64()), None),
                Err(at) => (None, Some(at)),
            };
            let operation =
                JournalOperation { op: JournalOp::Sleep, key: self.key, for_s, until, ..JournalOperation::default() };
            wait_for(self.replay, "sleep", &(for_s, until), operation).await?.decode()
        })
    }
}

/// A wait with a timeout: `None` if nothing arrived in time.
#[must_use = "a wait begins when it is awaited"]
pub struct TimedWait<T>(WaitFuture<Option<T>>);

impl<T> IntoFuture for TimedWait<T> {
    type Output = Result<Option<T>, HandlerError>;
    type IntoFuture = WaitFuture<Option<T>>;

    fn into_future(self) -> Self::IntoFuture {
        self.0
    }
}

/// A wait for a signal event. Await it.
#[must_use = "a wait begins when it is awaited"]
pub struct EventWait<T> {
    replay: Arc<Replay>,
    key: String,
    name: String,
    matches: Result<BTreeMap<String, serde_json::Value>, serde_json::Error>,
    since: Option<EventsSince>,
    data: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned + Send + 'static> EventWait<T> {
    pub(super) fn new(replay: Arc<Replay>, key: String, name: &str) -> Self {
        let matches = Ok(BTreeMap::new());
        Self { replay, key, name: name.to_owned(), matches, since: None, data: PhantomData }
    }

    /// Accepts only events that have this member in their data. May be repeated.
    pub fn matching(mut self, member: &str, value: &impl Serialize) -> Self {
        self.matches = self.matches.and_then(|mut matches| {
            matches.insert(member.to_owned(), serde_json::to_value(value)?);
            Ok(matches)
        });
        self
    }

    /// Ignores events that were sent before the wait is recorded.
    pub fn since_now(mut self) -> Self {
        self.since = Some(EventsSince::Now);
        self
    }

    /// Stops waiting after this time.
    pub fn timeout(self, timeout: Duration) -> TimedWait<T> {
        TimedWait(Box::pin(async move {
            let outcome = self.outcome(Some(timeout)).await?;
            if outcome.is_timeout() { Ok(None) } else { outcome.decode().map(Some) }
        }))
    }

    async fn outcome(self, timeout: Option<Duration>) -> Result<Outcome, HandlerError> {
        let matches = self.matches?;
        let timeout_s = timeout.map(|timeout| timeout.as_secs_f64());
        let operation = JournalOperation {
            op: JournalOp::Event,
            key: self.key,
            name: Some(self.name.clone()),
            matches: Some(matches.clone()).filter(|matches| !matches.is_empty()),
            since: self.since,
            timeout_s,
            ..JournalOperation::default()
        };
        wait_for(self.replay, &self.name, &(matches, self.since, timeout_s), operation).await
    }
}

impl<T: DeserializeOwned + Send + 'static> IntoFuture for EventWait<T> {
    type Output = Result<T, HandlerError>;
    type IntoFuture = WaitFuture<T>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.outcome(None).await?.decode() })
    }
}

/// A wait for the answer of a person. Await it.
#[must_use = "an approval is asked when it is awaited"]
pub struct ApprovalWait {
    replay: Arc<Replay>,
    name: String,
    operation: JournalOperation,
}

impl ApprovalWait {
    pub(super) fn new(replay: Arc<Replay>, key: String, name: &str, title: &str) -> Self {
        let title = Some(title.to_owned());
        let operation = JournalOperation { op: JournalOp::Approval, key, title, ..JournalOperation::default() };
        Self { replay, name: name.to_owned(), operation }
    }

    /// Adds more about what is to be approved.
    pub fn detail(mut self, detail: &str) -> Self {
        self.operation.detail = Some(detail.to_owned());
        self
    }

    /// Sets the right that the approver needs [default: `operate`].
    pub fn right(mut self, right: &str) -> Self {
        self.operation.right = Some(right.to_owned());
        self
    }

    /// Stops waiting after this time.
    pub fn timeout(mut self, timeout: Duration) -> TimedWait<ApprovalView> {
        self.operation.timeout_s = Some(timeout.as_secs_f64());
        TimedWait(Box::pin(async move {
            let outcome = self.outcome().await?;
            if outcome.is_timeout() { Ok(None) } else { outcome.decode().map(Some) }
        }))
    }

    async fn outcome(self) -> Result<Outcome, HandlerError> {
        let JournalOperation { title, detail, right, timeout_s, .. } = &self.operation;
        let input = (title.clone(), detail.clone(), right.clone(), *timeout_s);
        wait_for(self.replay, &self.name, &input, self.operation).await
    }
}

impl IntoFuture for ApprovalWait {
    type Output = Result<ApprovalView, HandlerError>;
    type IntoFuture = WaitFuture<ApprovalView>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.outcome().await?.decode() })
    }
}
