//! What a handler gets: its job, a way to tell how it goes, and word when the job is called off.

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
use wire::{ArtifactView, ClaimedJob, Problem, RawValue, SignalUpdate, code};

use super::bounds::check_fact;
use super::handler::HandlerError;
use super::session::Backoff;
use crate::backend::{Backend, BackendError};

/// The shortest time between two signals of one job.
const SIGNAL_GAP: Duration = Duration::from_millis(100);
/// How long an outcome waits for the last signal, which names the phase that a failure happened in.
const FLUSH: Duration = Duration::from_secs(2);

/// Cheap to clone; clones are the same job.
#[derive(Clone)]
pub struct JobContext(Arc<Inner>);

struct Inner {
    job: ClaimedJob,
    cancellation: CancellationToken,
    uplink: Arc<dyn Uplink>,
    refinement: Mutex<Refinement>,
    /// Held while a signal is on its way, so that they arrive in order.
    sending: tokio::sync::Mutex<()>,
    facts: Mutex<BTreeMap<String, Box<RawValue>>>,
}

#[derive(Default)]
struct Refinement {
    /// What is to be told next; a newer value replaces an older one that was not yet sent.
    pending: Option<SignalUpdate>,
    /// A task is about to send it.
    scheduled: bool,
    /// The handler has ended: what cannot be sent now is not kept for later.
    over: bool,
    /// The log has been told that the server refuses what this job says.
    refusal_told: bool,
}

impl JobContext {
    pub(super) fn new(job: ClaimedJob, cancellation: CancellationToken, uplink: Arc<dyn Uplink>) -> Self {
        Self(Arc::new(Inner {
            job,
            cancellation,
            uplink,
            refinement: Mutex::default(),
            sending: tokio::sync::Mutex::default(),
            facts: Mutex::default(),
        }))
    }

    pub fn id(&self) -> Uuid {
        self.0.job.id
    }

    pub fn queue(&self) -> &str {
        &self.0.job.queue
    }

    pub fn kind(&self) -> &str {
        &self.0.job.kind
    }

    /// The payload as `T`. One that does not fit never will: the job fails for good with `invalid_payload`.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T, HandlerError> {
        serde_json::from_str(self.raw_payload())
            .map_err(|error| HandlerError::permanent("invalid_payload", error.to_string()))
    }

    /// The payload as the producer sent it, in JSON.
    pub fn raw_payload(&self) -> &str {
        self.0.job.payload.get()
    }

    /// 1 for the first.
    pub fn attempt(&self) -> i64 {
        self.0.job.attempt
    }

    pub fn max_attempts(&self) -> i64 {
        self.0.job.max_attempts
    }

    pub fn affinity(&self) -> Option<&str> {
        self.0.job.affinity.as_deref()
    }

    pub fn subject(&self) -> Option<&str> {
        self.0.job.subject.as_deref()
    }

    /// Everything the claim told.
    pub fn job(&self) -> &ClaimedJob {
        &self.0.job
    }

    /// Cancelled when the job is called off, its claim is lost, or the worker must stop now. What the handler returns
    /// after a job was called off does not count.
    pub fn cancellation(&self) -> &CancellationToken {
        &self.0.cancellation
    }

    /// How far the job is, from 0 to 1.
    pub fn progress(&self, progress: f64) {
        self.refine(|signal| signal.progress = Some(progress.clamp(0.0, 1.0)));
    }

    /// What the job is doing: one of the built-in phases or one that the queue declares.
    pub fn phase(&self, phase: impl Into<String>) {
        self.refine(|signal| signal.phase = Some(phase.into()));
    }

    /// A sentence for people.
    pub fn summary(&self, summary: impl Into<String>) {
        self.refine(|signal| signal.summary = Some(summary.into()));
    }

    /// Changes several parts of the signal together. It returns at once; what is told faster than it can be sent is
    /// merged, and the latest wins.
    pub fn refine(&self, change: impl FnOnce(&mut SignalUpdate)) {
        let mut refinement = self.0.refinement.lock().unwrap_or_else(PoisonError::into_inner);
        let epoch = self.0.job.epoch;
        change(refinement.pending.get_or_insert_with(|| SignalUpdate { epoch, ..SignalUpdate::default() }));
        if !refinement.scheduled {
            refinement.scheduled = true;
            self.0.uplink.tasks().spawn(send_signals(self.0.clone()));
        }
    }

    /// A fact about the job's subject, set when and only when the job succeeds.
    ///
    /// What could never be set is an error at once, which fails the job for good if the handler passes it on: a job
    /// without a subject, a name that is not one, a value of more than 16 KiB as JSON, more than 256 facts.
    pub fn fact(&self, name: impl Into<String>, value: &impl Serialize) -> Result<(), HandlerError> {
        let (name, value) = (name.into(), serde_json::value::to_raw_value(value)?);
        let mut facts = self.0.facts.lock().unwrap_or_else(PoisonError::into_inner);
        let others = facts.len() - usize::from(facts.contains_key(&name));
        check_fact(self.subject(), &name, &value, others)?;
        facts.insert(name, value);
        Ok(())
    }

    /// Keeps a named blob with the job.
    pub async fn put_artifact(
        &self,
        name: &str,
        content_type: &str,
        bytes: impl Into<Bytes>,
    ) -> Result<ArtifactView, BackendError> {
        self.0.uplink.put_artifact(&self.0.job, name, content_type, bytes.into()).await
    }

    pub(super) fn take_facts(&self) -> Option<BTreeMap<String, Box<RawValue>>> {
        let facts = std::mem::take(&mut *self.0.facts.lock().unwrap_or_else(PoisonError::into_inner));
        Some(facts).filter(|facts| !facts.is_empty())
    }

    /// From now on signals are sent once or not at all.
    pub(super) fn has_ended(&self) {
        self.0.refinement.lock().unwrap_or_else(PoisonError::into_inner).over = true;
    }

    /// Sends what is still to be told, before the outcome makes it stale.
    pub(super) async fn flush(&self) {
        if !self.0.refinement.lock().unwrap_or_else(PoisonError::into_inner).scheduled {
            return;
        }
        let flush = async {
            let _in_order = self.0.sending.lock().await;
            if let Some(update) = self.0.take_pending() {
                self.0.send(update).await;
            }
        };
        if tokio::time::timeout(FLUSH, flush).await.is_err() {
            tracing::debug!(job = %self.id(), "the last signal was given up");
        }
    }
}

async fn send_signals(job: Arc<Inner>) {
    let mut backoff = Backoff::new();
    loop {
        let sent = {
            let _in_order = job.sending.lock().await;
            match job.take_pending_or_rest() {
                Some(update) => job.send(update).await,
                None => return,
            }
        };
        let pause = match sent {
            Sent::Answered => {
                backoff.reset();
                SIGNAL_GAP
            }
            Sent::PutBack => backoff.next().max(SIGNAL_GAP),
        };
        tokio::time::sleep(pause).await;
    }
}

/// What became of a signal.
enum Sent {
    Answered,
    PutBack,
}

impl Inner {
    fn take_pending(&self) -> Option<SignalUpdate> {
        self.refinement.lock().unwrap_or_else(PoisonError::into_inner).pending.take()
    }

    fn take_pending_or_rest(&self) -> Option<SignalUpdate> {
        let mut refinement = self.refinement.lock().unwrap_or_else(PoisonError::into_inner);
        let pending = refinement.pending.take();
        refinement.scheduled = pending.is_some();
        pending
    }

    /// A signal that cannot be sent is not worth holding up the job for: what it says is told with the next one.
    async fn send(&self, update: SignalUpdate) -> Sent {
        let Err(error) = self.uplink.signal(self.job.id, update.clone()).await else { return Sent::Answered };
        tracing::debug!(job = %self.job.id, %error, "a signal was not taken");
        match error {
            BackendError::Unavailable(_) | BackendError::Unanswered(_) => {
                self.put_back(update);
                return Sent::PutBack;
            }
            // That the job is not ours any more its cancellation token says.
            BackendError::Refused(problem) if !is_of_another(&problem) => self.tell_refusal(&problem),
            BackendError::Refused(_) | BackendError::Gone => {}
        }
        Sent::Answered
    }

    /// Below what was said since: the latest wins.
    fn put_back(&self, older: SignalUpdate) {
        let mut refinement = self.refinement.lock().unwrap_or_else(PoisonError::into_inner);
        if refinement.over || self.cancellation.is_cancelled() {
            return;
        }
        refinement.pending = Some(match refinement.pending.take() {
            Some(newer) => merged(older, newer),
            None => older,
        });
    }

    /// Once for each job: a handler that says something wrong says it again and again.
    fn tell_refusal(&self, problem: &Problem) {
        let mut refinement = self.refinement.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut refinement.refusal_told, true) {
            tracing::warn!(job = %self.job.id, code = problem.code, detail = problem.detail, "a signal was refused");
        }
    }
}

fn is_of_another(problem: &Problem) -> bool {
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
    }
}

/// `Backend` with its type erased: handlers are the same whatever they run on.
pub(super) trait Uplink: Send + Sync {
    fn signal(&self, job: Uuid, update: SignalUpdate) -> BoxFuture<'_, Result<(), BackendError>>;

    fn put_artifact<'a>(
        &'a self,
        job: &'a ClaimedJob,
        name: &'a str,
        content_type: &'a str,
        bytes: Bytes,
    ) -> BoxFuture<'a, Result<ArtifactView, BackendError>>;

    fn tasks(&self) -> &TaskTracker;
}

pub(super) struct BackendUplink<B> {
    pub(super) backend: Arc<B>,
    pub(super) tasks: TaskTracker,
}

impl<B: Backend> Uplink for BackendUplink<B> {
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
}
