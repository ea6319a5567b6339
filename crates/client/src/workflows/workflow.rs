//! The context of a durable workflow.
//!
//! ```no_run
//! # use std::time::Duration;
//! # use client::{Client, HandlerError, Worker, Workflow};
//! # async fn charge(order: u64) -> Result<String, std::io::Error> { Ok(format!("ch_{order}")) }
//! # async fn refund(charge: String) -> Result<(), std::io::Error> { Ok(()) }
//! async fn order(workflow: Workflow) -> Result<String, HandlerError> {
//!     let order: u64 = workflow.payload()?;
//!     let charge = workflow
//!         .step("charge", || async { Ok(charge(order).await?) })
//!         .undo(|charge: String| async { Ok(refund(charge).await?) })
//!         .await?;
//!     if !workflow.approval("ship", "Ship the order?").await?.approved {
//!         return Err(HandlerError::permanent("rejected", "The order was rejected."));
//!     }
//!     workflow.sleep(Duration::from_secs(3 * 24 * 3_600)).await?;
//!     Ok(charge)
//! }
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new("http://127.0.0.1:7717")?;
//! let worker = Worker::builder(client).queue("orders").workflow("order", order).build()?;
//! # worker.run(tokio_util::sync::CancellationToken::new()).await?;
//! # Ok(()) }
//! ```

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use wire::{JobError, JobRequest, JournalOp, JournalOperation, RawValue, Timestamp};

use super::children::{Gather, Spawn};
use super::digest::digest;
use super::replay::{Replay, recorded_error};
use super::step::Step;
use super::wait::{ApprovalWait, EventWait, Sleep};
use crate::queue::job::Job;
use crate::queue::worker::JobContext;
use crate::queue::worker::handler::HandlerError;

/// The context of one attempt of a workflow: a handler that records its finished operations.
///
/// When the handler runs again, after a crash, a retry or a wait, recorded operations return their recorded results. The
/// handler must therefore do all work with an effect in steps, and take the same way through its operations for the same
/// results. `tokio::join!`, `tokio::select!` and the combinators of `futures` are allowed: results are revealed in the
/// order in which they were recorded.
///
/// While the handler awaits nothing but a sleep, an event, an approval or children, its job is given back to the server
/// and the handler is dropped. A branch must not await something else outside of a step, such as a timer or a request:
/// it does not keep the other branches from suspending the workflow. Do not spawn tasks that use the workflow.
#[derive(Clone)]
pub struct Workflow {
    replay: Arc<Replay>,
    /// The prefix of keys: empty or with a `/` at its end.
    scope: Arc<str>,
}

impl Workflow {
    pub(super) fn new(replay: Arc<Replay>) -> Self {
        Self { replay, scope: "".into() }
    }

    /// The job of this attempt, to report progress and to read its properties.
    pub fn job(&self) -> &JobContext {
        &self.replay.job
    }

    /// Parses the payload as `T`. An invalid payload fails the job permanently with `invalid_payload`.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T, HandlerError> {
        self.job().payload()
    }

    /// Runs `work` and records its result under the name. A recorded step is not run again.
    ///
    /// Names may repeat: the second step `page` has the key `page#2`. An error is recorded as an attempt and fails the
    /// attempt of the job; a permanent one is the result of the step. See `Step::retry` for attempts of a step itself.
    pub fn step<'a, T, F, Fut>(&self, name: &str, work: F) -> Step<'a, T>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        F: FnMut() -> Fut + Send + 'a,
        Fut: Future<Output = Result<T, HandlerError>> + Send + 'a,
    {
        Step::new(self.replay.clone(), name, self.key(name), work)
    }

    /// Waits. Days are fine: a sleeping workflow occupies no process.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        Sleep::new(self.replay.clone(), self.key("sleep"), Ok(duration))
    }

    /// Waits until a time.
    pub fn sleep_until(&self, at: Timestamp) -> Sleep {
        Sleep::new(self.replay.clone(), self.key("sleep"), Err(at))
    }

    /// Waits for a signal event, which `POST /jobs/{id}/events/{name}` sends, and returns its data. An event that was
    /// sent before is received, too; each event is received once.
    pub fn wait_for_event<T: DeserializeOwned + Send + 'static>(&self, name: &str) -> EventWait<T> {
        EventWait::new(self.replay.clone(), self.key(name), name)
    }

    /// Waits for the answer of a person to `title`, on the dashboard or with `POST /jobs/{id}/approvals/{key}`.
    pub fn approval(&self, name: &str, title: &str) -> ApprovalWait {
        ApprovalWait::new(self.replay.clone(), self.key(name), name, title)
    }

    /// Starts a job and waits for its result. A failed child fails the step permanently with `child_failed`.
    pub fn spawn<J: Job>(&self, job: &J) -> Spawn<J::Output> {
        Spawn::new(Gather::new(self.replay.clone(), self.key(J::KIND), vec![job.request()]))
    }

    /// Starts any job and waits for its result.
    pub fn spawn_request<T: DeserializeOwned + Send + 'static>(&self, request: JobRequest) -> Spawn<T> {
        let key = self.key(&request.kind);
        Spawn::new(Gather::new(self.replay.clone(), key, vec![Ok(request)]))
    }

    /// Starts jobs with one operation, at most 10,000, and waits until all of them have ended. Returns their results in
    /// order. Prefer this to many `spawn`: the workflow is resumed once.
    pub fn gather<J: Job>(&self, jobs: impl IntoIterator<Item = J>) -> Gather<J::Output> {
        let requests = jobs.into_iter().map(|job| job.request()).collect();
        Gather::new(self.replay.clone(), self.key(J::KIND), requests)
    }

    /// Starts any jobs with one operation and waits until all of them have ended.
    pub fn gather_requests<T: DeserializeOwned + Send + 'static>(&self, requests: Vec<JobRequest>) -> Gather<T> {
        let name = requests.first().map_or("children", |first| &first.kind).to_owned();
        Gather::new(self.replay.clone(), self.key(&name), requests.into_iter().map(Ok).collect())
    }

    /// Publishes an event on a topic, once, in the commit that records it.
    pub fn publish<S: Serialize>(
        &self,
        topic: &str,
        data: &S,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send + use<S> {
        let (replay, key, topic) = (self.replay.clone(), self.key("publish"), topic.to_owned());
        let data = serde_json::value::to_raw_value(data);
        async move {
            let data = data?;
            let hash = digest(JournalOp::Publish, &topic, &data)?;
            let expected = replay.expect(&key, JournalOp::Publish, &hash)?;
            if expected.recorded.is_none() {
                replay.begin_operation().await;
            }
            if expected.recorded.is_none_or(|recorded| recorded.has_drifted) {
                replay.submit(JournalOperation {
                    op: JournalOp::Publish,
                    key,
                    hash: Some(hash),
                    topic: Some(topic),
                    data: Some(data),
                    ..JournalOperation::default()
                });
            }
            expected.awaiting.resolved().await.map(drop)
        }
    }

    /// Ends this job as succeeded and starts its successor, the same job with another payload and an empty journal, in
    /// one transaction. Return the error from the handler.
    ///
    /// ```no_run
    /// # async fn example(workflow: client::Workflow) -> Result<(), client::HandlerError> {
    /// let round: u64 = workflow.payload()?;
    /// workflow.continue_as(&(round + 1))
    /// # }
    /// ```
    pub fn continue_as<T>(&self, payload: &impl Serialize) -> Result<T, HandlerError> {
        Err(HandlerError::continue_as(serde_json::to_string(payload)?))
    }

    /// A part of the workflow. Its keys begin with `name/`. Give each of several parallel branches its own scope, so that
    /// the numbers of repeated names do not depend on which branch is faster.
    pub fn scope(&self, name: &str) -> Self {
        let scope = format!("{}/", self.key(name));
        Self { replay: self.replay.clone(), scope: scope.into() }
    }

    /// Returns what is recorded for the step with exactly this key, for programs that choose their keys themselves.
    pub fn recorded(&self, key: &str) -> Option<Result<Box<RawValue>, JobError>> {
        self.replay.recorded(key)
    }

    /// Records the result of a step with exactly this key, and returns what is recorded: the first result counts.
    pub async fn record(&self, key: &str, result: Box<RawValue>) -> Result<Box<RawValue>, HandlerError> {
        match self.recorded(key) {
            Some(recorded) => recorded.map_err(recorded_error),
            None => self.replay.record(key, result).await,
        }
    }

    fn key(&self, name: &str) -> String {
        self.replay.new_key(&self.scope, name)
    }
}
