//! The context that a handler receives: its job, methods to report progress, and a cancellation token.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;
use wire::{ArtifactView, ClaimedJob, ClaimedJournal, Problem, RawValue, SignalUpdate, code};

use super::bounds::check_fact;
use super::handler::HandlerError;
use super::session::Backoff;
use super::shared_states::SharedStates;
use crate::backend::{Backend, BackendError, HeldClaim};
use crate::workflows::journal_writer::{JournalWriter, Submission};

/// Minimum interval between two signals of one job.
const MIN_SIGNAL_INTERVAL: Duration = Duration::from_millis(100);
/// How long an outcome waits for the last signal, which names the phase in which a failure happened.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// The context of one attempt. Cheap to clone; clones refer to the same attempt.
#[derive(Clone)]
pub struct JobContext(Arc<SharedJob>);

struct SharedJob {
    job: ClaimedJob,
    /// The worker that has claimed the job.
    worker: Uuid,
    states: Arc<SharedStates>,
    cancellation: CancellationToken,
    uplink: Arc<dyn Uplink>,
    pending_signal: Mutex<PendingSignal>,
    /// Held while a signal is sent, so that signals arrive in order.
    sending: tokio::sync::Mutex<()>,
    facts: Mutex<BTreeMap<String, Box<RawValue>>>,
}

#[derive(Default)]
struct PendingSignal {
    /// The next signal to send. Newer values replace unsent older ones.
    pending: Option<SignalUpdate>,
    /// A task that will send it is running.
    scheduled: bool,
    /// The handler has ended: signals that cannot be sent are dropped.
    is_ended: bool,
    /// A rejection of this job's signals has been logged.
    refusal_logged: bool,
}

impl JobContext {
    pub(super) fn new(
        job: ClaimedJob,
        worker: Uuid,
        states: Arc<SharedStates>,
        cancellation: CancellationToken,
        uplink: Arc<dyn Uplink>,
    ) -> Self {
        Self(Arc::new(SharedJob {
            job,
            worker,
            states,
            cancellation,
            uplink,
            pending_signal: Mutex::default(),
            sending: tokio::sync::Mutex::default(),
            facts: Mutex::default(),
        }))
    }

    /// The job's id.
    pub fn id(&self) -> Uuid {
        self.0.job.id
    }

    /// The queue's name.
    pub fn queue(&self) -> &str {
        &self.0.job.queue
    }

    /// The kind of work.
    pub fn kind(&self) -> &str {
        &self.0.job.kind
    }

    /// Parses the payload as `T`. An invalid payload fails the job permanently with `invalid_payload`.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T, HandlerError> {
        serde_json::from_str(self.raw_payload())
            .map_err(|error| HandlerError::permanent("invalid_payload", error.to_string()))
    }

    /// The payload as sent by the producer, in JSON.
    pub fn raw_payload(&self) -> &str {
        self.0.job.payload.get()
    }

    /// The number of this attempt, starting at 1.
    pub fn attempt(&self) -> i64 {
        self.0.job.attempt
    }

    /// Maximum number of attempts.
    pub fn max_attempts(&self) -> i64 {
        self.0.job.max_attempts
    }

    /// What the job needs to be loaded.
    pub fn affinity(&self) -> Option<&str> {
        self.0.job.affinity.as_deref()
    }

    /// The subject that the job works on.
    pub fn subject(&self) -> Option<&str> {
        self.0.job.subject.as_deref()
    }

    /// The value of this type that `WorkerBuilder::state` shares. Without one, the error fails the job permanently.
    pub fn state<S: 'static>(&self) -> Result<&S, HandlerError> {
        self.0.states.get().ok_or_else(|| {
            let message = format!("The worker shares no {}.", std::any::type_name::<S>());
            HandlerError::permanent("missing_state", message)
        })
    }

    /// All data of the claimed job.
    pub fn job(&self) -> &ClaimedJob {
        &self.0.job
    }

    /// Cancelled when the job is canceled, its claim is lost, or the worker must stop. The handler's return value is
    /// ignored after a cancellation of the job.
    pub fn cancellation(&self) -> &CancellationToken {
        &self.0.cancellation
    }

    /// Reports the progress, from 0 to 1.
    pub fn progress(&self, progress: f64) {
        self.refine(|signal| signal.progress = Some(progress.clamp(0.0, 1.0)));
    }

    /// Reports the phase: a built-in one or one that the queue declares.
    pub fn phase(&self, phase: impl Into<String>) {
        self.refine(|signal| signal.phase = Some(phase.into()));
    }

    /// Reports a summary for people.
    pub fn summary(&self, summary: impl Into<String>) {
        self.refine(|signal| signal.summary = Some(summary.into()));
    }

    /// Changes several fields of the signal at once. Returns immediately; updates that arrive faster than they can be
    /// sent are merged, and the latest values win.
    pub fn refine(&self, change: impl FnOnce(&mut SignalUpdate)) {
        let mut pending_signal = self.0.pending_signal.lock().unwrap_or_else(PoisonError::into_inner);
        let epoch = self.0.job.epoch;
        change(pending_signal.pending.get_or_insert_with(|| SignalUpdate { epoch, ..SignalUpdate::default() }));
        if !pending_signal.scheduled {
            pending_signal.scheduled = true;
            self.0.uplink.tasks().spawn(send_signals(self.0.clone()));
        }
    }

    /// Sets a fact of the job's subject if the job succeeds.
    ///
    /// Returns an error at once for a fact that can never be set, which fails the job permanently if the handler
    /// propagates it: a job without a subject, an invalid name, a value of more than 16 KiB of JSON, or more than 256
    /// facts.
    pub fn fact(&self, name: impl Into<String>, value: &impl Serialize) -> Result<(), HandlerError> {
        let (name, value) = (name.into(), serde_json::value::to_raw_value(value)?);
        let mut facts = self.0.facts.lock().unwrap_or_else(PoisonError::into_inner);
        let others = facts.len() - usize::from(facts.contains_key(&name));
        check_fact(self.subject(), &name, &value, others)?;
        facts.insert(name, value);
        Ok(())
    }

    /// Stores a named blob with the job.
    pub async fn put_artifact(
        &self,
        name: &str,
        content_type: &str,
        bytes: impl Into<Bytes>,
    ) -> Result<ArtifactView, BackendError> {
        self.0.uplink.put_artifact(&self.0.job, name, content_type, bytes.into()).await
    }

    pub(crate) fn worker(&self) -> Uuid {
        self.0.worker
    }

    pub(crate) fn claim(&self) -> HeldClaim {
        HeldClaim { worker: self.0.worker, job: self.0.job.id }
    }

    pub(crate) fn uplink(&self) -> &dyn Uplink {
        &*self.0.uplink
    }

    pub(super) fn take_facts(&self) -> Option<BTreeMap<String, Box<RawValue>>> {
        let facts = std::mem::take(&mut *self.0.facts.lock().unwrap_or_else(PoisonError::into_inner));
        Some(facts).filter(|facts| !facts.is_empty())
    }

    /// From now on signals are sent at most once, without retries.
    pub(super) fn has_ended(&self) {
        self.0.pending_signal.lock().unwrap_or_else(PoisonError::into_inner).is_ended = true;
    }

    /// Sends the pending signal before the outcome makes it stale.
    pub(super) async fn flush(&self) {
        if !self.0.pending_signal.lock().unwrap_or_else(PoisonError::into_inner).scheduled {
            return;
        }
        let flush = async {
            let _order = self.0.sending.lock().await;
            if let Some(update) = self.0.take_pending() {
                self.0.send(update).await;
            }
        };
        if tokio::time::timeout(FLUSH_TIMEOUT, flush).await.is_err() {
            tracing::debug!(job = %self.id(), "timed out sending the last signal");
        }
    }
}

async fn send_signals(job: Arc<SharedJob>) {
    let mut backoff = Backoff::new();
    loop {
        let sent = {
            let _order = job.sending.lock().await;
            match job.take_pending_or_idle() {
                Some(update) => job.send(update).await,
                None => return,
            }
        };
        let pause = match sent {
            SendResult::Delivered => {
                backoff.reset();
                MIN_SIGNAL_INTERVAL
            }
            SendResult::Requeued => backoff.next().max(MIN_SIGNAL_INTERVAL),
        };
        tokio::time::sleep(pause).await;
    }
}

/// The result of sending a signal.
enum SendResult {
    Delivered,
    Requeued,
}

impl SharedJob {
    fn take_pending(&self) -> Option<SignalUpdate> {
        self.pending_signal.lock().unwrap_or_else(PoisonError::into_inner).pending.take()
    }

    fn take_pending_or_idle(&self) -> Option<SignalUpdate> {
        let mut pending_signal = self.pending_signal.lock().unwrap_or_else(PoisonError::into_inner);
        let pending = pending_signal.pending.take();
        pending_signal.scheduled = pending.is_some();
        pending
    }

    /// Sends a signal. On an outage the signal is merged with the next one instead of delaying the job.
    async fn send(&self, update: SignalUpdate) -> SendResult {
        let Err(error) = self.uplink.signal(self.job.id, update.clone()).await else { return SendResult::Delivered };
        tracing::debug!(job = %self.job.id, %error, "cannot send a signal");
        match error {
            BackendError::Unavailable(_) | BackendError::Throttled(_) | BackendError::Unanswered(_) => {
                self.requeue(update);
                return SendResult::Requeued;
            }
            // A lost claim is reported through the cancellation token.
            BackendError::Refused(problem) if !is_claim_lost(&problem) => self.log_refusal(&problem),
            BackendError::Refused(_) | BackendError::LeaseExpired => {}
        }
        SendResult::Delivered
    }

    /// Merges an unsent signal below newer values.
    fn requeue(&self, older: SignalUpdate) {
        let mut pending_signal = self.pending_signal.lock().unwrap_or_else(PoisonError::into_inner);
        if pending_signal.is_ended || self.cancellation.is_cancelled() {
            return;
        }
        pending_signal.pending = Some(match pending_signal.pending.take() {
            Some(newer) => merged(older, newer),
            None => older,
        });
    }

    /// Logs a rejection once per job, because a handler usually repeats the same mistake.
    fn log_refusal(&self, problem: &Problem) {
        let mut pending_signal = self.pending_signal.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut pending_signal.refusal_logged, true) {
            tracing::warn!(job = %self.job.id, code = problem.code, detail = problem.detail, "a signal was rejected");
        }
    }
}

fn is_claim_lost(problem: &Problem) -> bool {
    matches!(problem.code.as_str(), code::CLAIM_LOST | code::ALREADY_ENDED | code::NOT_FOUND)
}

fn merged(older: SignalUpdate, newer: SignalUpdate) -> SignalUpdate {
    SignalUpdate {
        epoch: newer.epoch,
        phase: newer.phase.or(older.phase),
        summary: newer.summary.or(older.summary),
        progress: newer.progress.or(older.progress),
        eta_s: newer.eta_s.or(older.eta_s),
        last_known_outcome: newer.last_known_outcome.or(older.last_known_outcome),
        next_actions: newer.next_actions.or(older.next_actions),
        diagnostics: newer.diagnostics.or(older.diagnostics),
        payload: newer.payload.or(older.payload),
        state: newer.state.or(older.state),
        // A report without a kind withdraws the earlier one.
        kind: newer.kind,
    }
}

/// `Backend` with its type erased, so that handlers do not depend on it.
pub(crate) trait Uplink: Send + Sync {
    /// Adds an operation to the next request of the journal.
    fn submit(&self, submission: Submission);

    fn read_journal<'a>(
        &'a self,
        job: Uuid,
        cursor: Option<&'a str>,
    ) -> BoxFuture<'a, Result<ClaimedJournal, BackendError>>;

    fn read_result(&self, claim: HeldClaim, job: Uuid) -> BoxFuture<'_, Result<Option<Box<RawValue>>, BackendError>>;

    fn read_artifact<'a>(
        &'a self,
        claim: HeldClaim,
        job: Uuid,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Bytes, BackendError>>;

    fn signal(&self, job: Uuid, update: SignalUpdate) -> BoxFuture<'_, Result<(), BackendError>>;

    fn put_artifact<'a>(
        &'a self,
        job: &'a ClaimedJob,
        name: &'a str,
        content_type: &'a str,
        bytes: Bytes,
    ) -> BoxFuture<'a, Result<ArtifactView, BackendError>>;

    fn tasks(&self) -> &TaskTracker;

    /// Drops operations that were not sent, when the worker stops.
    fn close(&self);
}

pub(super) struct BackendUplink<B> {
    backend: Arc<B>,
    writer: Arc<JournalWriter<B>>,
    tasks: TaskTracker,
}

impl<B: Backend> BackendUplink<B> {
    pub(super) fn new(backend: Arc<B>) -> Self {
        Self { writer: JournalWriter::new(backend.clone()), backend, tasks: TaskTracker::new() }
    }
}

impl<B: Backend> Uplink for BackendUplink<B> {
    fn submit(&self, submission: Submission) {
        self.writer.submit(&self.tasks, submission);
    }

    fn read_journal<'a>(
        &'a self,
        job: Uuid,
        cursor: Option<&'a str>,
    ) -> BoxFuture<'a, Result<ClaimedJournal, BackendError>> {
        Box::pin(self.backend.read_journal(job, cursor))
    }

    fn read_result(&self, claim: HeldClaim, job: Uuid) -> BoxFuture<'_, Result<Option<Box<RawValue>>, BackendError>> {
        Box::pin(self.backend.read_result(claim, job))
    }

    fn read_artifact<'a>(
        &'a self,
        claim: HeldClaim,
        job: Uuid,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Bytes, BackendError>> {
        Box::pin(self.backend.read_artifact(claim, job, name))
    }

    fn signal(&self, job: Uuid, update: SignalUpdate) -> BoxFuture<'_, Result<(), BackendError>> {
        Box::pin(self.backend.signal(job, update))
    }

    fn put_artifact<'a>(
        &'a self,
        job: &'a ClaimedJob,
        name: &'a str,
        content_type: &'a str,
        bytes: Bytes,
    ) -> BoxFuture<'a, Result<ArtifactView, BackendError>> {
        Box::pin(self.backend.put_artifact(job.id, job.epoch, name, content_type, bytes))
    }

    fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    fn close(&self) {
        self.tasks.close();
        self.writer.close();
    }
}
