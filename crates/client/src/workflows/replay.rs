//! The journal as one attempt of a workflow sees it, and the operations that the handler awaits.
//!
//! Completions are revealed to the handler one at a time, in the order in which they were recorded (`seq`). The handler
//! therefore takes the same way through `select!` and `join!` on every run, whatever had ended in the meantime.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use serde::de::DeserializeOwned;
use wire::{JobError, JournalEntry, JournalOp, JournalOperation, RawValue, code};

use super::digest;
use super::journal_writer::{JournalFailure, Submission};
use super::undo::UndoStep;
use crate::queue::worker::JobContext;
use crate::queue::worker::handler::HandlerError;
use crate::queue::worker::session::Backoff;

/// The entry by which the server asks for the undo steps of a canceled job.
const CANCEL_KEY: &str = "$cancel";
/// Delay of a workflow after a quota rejected one of its operations.
const THROTTLED_DELAY: Duration = Duration::from_secs(5);

/// One attempt of a workflow. Clones of `Workflow` share it.
pub(crate) struct Replay {
    pub(crate) job: JobContext,
    /// A recorded step that is met with another digest is an error.
    pub(crate) strict: bool,
    /// The undo steps run.
    is_undoing: AtomicBool,
    journal: Mutex<KnownJournal>,
}

#[derive(Default)]
pub(super) struct KnownJournal {
    entries: HashMap<String, JournalEntry>,
    /// All entries up to this place in the order of resolution are known.
    complete_until: i64,
    /// Places after a gap.
    beyond: BTreeSet<i64>,
    /// The operations that the handler awaits.
    awaited: HashMap<String, AwaitedOperation>,
    /// Awaited operations that are resolved and not revealed yet, in the order of resolution.
    ready: BTreeMap<i64, String>,
    /// Steps that run, and requests in flight.
    active: usize,
    /// How often each name was used.
    names: HashMap<String, u32>,
    /// Steps to undo if the workflow fails, in the order of their completion.
    pub(super) undo: Vec<UndoStep>,
    /// Why the attempt cannot continue.
    stopped: Option<HandlerError>,
    /// Wakes the task that drives the handler.
    driver: Option<Waker>,
}

#[derive(Default)]
struct AwaitedOperation {
    waker: Option<Waker>,
    /// A record that does not resolve the operation is an answer, too.
    wants_record: bool,
    answer: Option<Result<(), HandlerError>>,
}

impl AwaitedOperation {
    fn answer(&mut self, answer: Result<(), HandlerError>) {
        self.answer = Some(answer);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// What the driver does after the handler could not continue.
pub(super) enum Progress {
    /// Wait: something runs, or the handler awaits something else than the journal.
    Wait,
    /// Read the journal again: it has completions that this worker does not know.
    Refresh,
    /// Give the job back until one of these entries is resolved.
    Suspend(Vec<String>),
    Stop(HandlerError),
}

impl Replay {
    /// Starts an attempt with the journal of the claim. Reads the pages that the claim does not have.
    pub(crate) async fn load(job: JobContext, strict: bool) -> Arc<Self> {
        let replay = Arc::new(Self { job, strict, is_undoing: AtomicBool::new(false), journal: Mutex::default() });
        if let Some(first) = &replay.job.job().journal {
            replay.insert(first.entries.iter().cloned());
            if let Some(cursor) = &first.next_cursor {
                replay.read_pages(Some(cursor.clone())).await;
            }
        }
        replay
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, KnownJournal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, entries: impl IntoIterator<Item = JournalEntry>) {
        let mut journal = self.lock();
        entries.into_iter().for_each(|entry| journal.insert(entry));
    }

    /// Reads the journal from a cursor to its end.
    async fn read_pages(&self, mut cursor: Option<String>) {
        let mut backoff = Backoff::new();
        let cancellation = self.job.cancellation();
        while !cancellation.is_cancelled() {
            match self.job.uplink().read_journal(self.job.id(), cursor.as_deref()).await {
                Ok(page) => {
                    self.insert(page.entries);
                    cursor = page.next_cursor;
                    if cursor.is_none() {
                        break;
                    }
                }
                Err(crate::BackendError::Refused(problem)) => {
                    self.lock().stopped = Some(HandlerError::retryable(&problem.code, &problem.detail));
                    break;
                }
                Err(error) => {
                    tracing::warn!(job = %self.job.id(), %error, cause = error.cause(), "cannot read the journal; retrying");
                    let pause = tokio::time::sleep(backoff.next());
                    let _canceled = cancellation.run_until_cancelled(pause).await;
                }
            }
        }
        self.lock().assume_complete();
    }

    /// Reads the whole journal again.
    pub(super) async fn refresh(self: Arc<Self>) {
        self.read_pages(None).await;
        self.lock().end_activity();
    }

    /// A key that no other operation of this attempt has: the name, or `name#2`, `name#3`.
    pub(crate) fn new_key(&self, scope: &str, name: &str) -> String {
        // The sign is reserved for repeated names.
        self.unique_key(format!("{scope}{}", name.replace('#', ".")))
    }

    /// The key of the step that undoes an operation.
    pub(super) fn undo_key(&self, key: &str) -> String {
        self.unique_key(format!("undo/{key}"))
    }

    fn unique_key(&self, base: String) -> String {
        let mut journal = self.lock();
        let uses = journal.names.entry(base.clone()).or_default();
        *uses += 1;
        if *uses == 1 { base } else { format!("{base}#{uses}") }
    }

    /// True if the job was canceled and its finished steps are to be undone.
    pub(super) fn is_compensating(&self) -> bool {
        self.lock().entries.contains_key(CANCEL_KEY)
    }

    pub(super) fn begin_undo(&self) {
        self.is_undoing.store(true, Ordering::Relaxed);
    }

    /// True if the handler may begin nothing new: the job is canceled, or the worker stops.
    pub(super) fn is_halted(&self) -> bool {
        let is_compensated = || !self.is_undoing.load(Ordering::Relaxed) && self.is_compensating();
        self.job.cancellation().is_cancelled() || is_compensated()
    }

    /// Waits forever if the handler may begin nothing new.
    pub(super) async fn begin_operation(&self) {
        if self.is_halted() {
            std::future::pending::<()>().await;
        }
    }

    /// Keeps the workflow from being suspended until the guard is dropped.
    pub(super) fn activity(self: &Arc<Self>) -> Activity {
        self.lock().active += 1;
        Activity(self.clone())
    }

    /// Registers an operation that the handler awaits, and returns what is recorded for it.
    ///
    /// Fails if the key belongs to another kind of operation, or with `strict` to another digest.
    pub(super) fn expect(self: &Arc<Self>, key: &str, op: JournalOp, hash: &str) -> Result<Expected, HandlerError> {
        let mut journal = self.lock();
        let recorded = journal.entries.get(key).map(|entry| RecordedState {
            is_resolved: entry.seq.is_some(),
            seq: entry.seq,
            attempt: entry.attempt,
            has_drifted: entry.hash.as_ref().is_some_and(|recorded| recorded != hash),
            is_other_operation: entry.op != digest::operation_name(op),
        });
        if let Some(recorded) = &recorded
            && (recorded.is_other_operation || (recorded.has_drifted && self.strict))
        {
            let message = format!("The journal has another operation with the key {key:?}: the handler has changed.");
            return Err(HandlerError::permanent(code::WORKFLOW_DRIFT, message));
        }
        journal.awaited.insert(key.to_owned(), AwaitedOperation::default());
        if let Some(seq) = recorded.as_ref().and_then(|recorded| recorded.seq) {
            journal.ready.insert(seq, key.to_owned());
        }
        Ok(Expected { awaiting: Awaiting { replay: self.clone(), key: key.to_owned() }, recorded })
    }

    /// What is recorded for a step.
    pub(super) fn recorded(&self, key: &str) -> Option<Result<Box<RawValue>, JobError>> {
        let journal = self.lock();
        let entry = journal.entries.get(key).filter(|entry| entry.seq.is_some())?;
        Some(match &entry.error {
            Some(error) => Err(error.clone()),
            None => Ok(entry.result.clone().unwrap_or_default()),
        })
    }

    /// Records the result of a step that is not recorded yet.
    pub(super) async fn record(
        self: &Arc<Self>,
        key: &str,
        result: Box<RawValue>,
    ) -> Result<Box<RawValue>, HandlerError> {
        let Expected { awaiting, .. } = self.expect(key, JournalOp::Step, "")?;
        let (key, kept) = (key.to_owned(), result.clone());
        self.submit(JournalOperation { op: JournalOp::Step, key, result: Some(result), ..JournalOperation::default() });
        let outcome = awaiting.resolved().await?;
        let recorded = if outcome.existed { outcome.result.unwrap_or_default() } else { kept };
        if let Some(entry) = self.lock().entries.get_mut(awaiting.key()) {
            entry.result = Some(recorded.clone());
            entry.error.clone_from(&outcome.error);
        }
        outcome.error.map_or(Ok(recorded), |error| Err(recorded_error(error)))
    }

    /// Sends an operation to the server. `on_answer` of the journal wakes what awaits it.
    pub(super) fn submit(self: &Arc<Self>, operation: JournalOperation) {
        self.lock().active += 1;
        let key = operation.key.clone();
        let replay = self.clone();
        self.job.uplink().submit(Submission {
            worker: self.job.worker(),
            job: self.job.id(),
            epoch: self.job.job().epoch,
            strict: self.strict,
            operation,
            on_answer: Box::new(move |answer| replay.lock().on_answer(&key, answer)),
        });
    }
}

impl KnownJournal {
    fn insert(&mut self, entry: JournalEntry) {
        if let Some(seq) = entry.seq {
            if seq > self.complete_until {
                self.beyond.insert(seq);
            }
            while self.beyond.remove(&(self.complete_until + 1)) {
                self.complete_until += 1;
            }
            let is_new = self.entries.get(&entry.key).is_none_or(|known| known.seq.is_none());
            if is_new && self.awaited.get(&entry.key).is_some_and(|awaited| awaited.answer.is_none()) {
                self.ready.insert(seq, entry.key.clone());
            }
            if !is_new {
                return;
            }
        }
        self.entries.insert(entry.key.clone(), entry);
    }

    /// After a complete read, what is still unknown does not exist.
    fn assume_complete(&mut self) {
        if let Some(last) = self.beyond.last().copied() {
            self.complete_until = self.complete_until.max(last);
            self.beyond.clear();
        }
    }

    fn on_answer(&mut self, key: &str, answer: Result<JournalEntry, JournalFailure>) {
        match answer {
            Ok(entry) => {
                let is_open = entry.seq.is_none();
                self.insert(entry);
                if let Some(awaited) = self.awaited.get_mut(key)
                    && is_open
                    && awaited.wants_record
                {
                    awaited.answer(Ok(()));
                }
            }
            // The heartbeat cancels the job.
            Err(JournalFailure::ClaimLost) => self.stop(HandlerError::cancel()),
            Err(JournalFailure::Throttled(problem)) => {
                tracing::warn!(code = problem.code, detail = problem.detail, "a limit delays a workflow");
                self.stop(HandlerError::snooze(THROTTLED_DELAY));
            }
            Err(JournalFailure::Refused(problem)) => {
                let is_about_operation = matches!(problem.status, 400 | 409 | 413 | 422);
                let error = match is_about_operation {
                    true => HandlerError::permanent(&problem.code, &problem.detail),
                    false => HandlerError::retryable(&problem.code, &problem.detail),
                };
                match self.awaited.get_mut(key) {
                    Some(awaited) => awaited.answer(Err(error)),
                    None => self.stop(error),
                }
            }
        }
        self.end_activity();
    }

    fn stop(&mut self, error: HandlerError) {
        self.stopped.get_or_insert(error);
        self.wake_driver();
    }

    fn end_activity(&mut self) {
        self.active -= 1;
        self.wake_driver();
    }

    fn wake_driver(&mut self) {
        if let Some(driver) = self.driver.take() {
            driver.wake();
        }
    }

    pub(super) fn set_driver(&mut self, waker: &Waker) {
        if self.driver.as_ref().is_none_or(|driver| !driver.will_wake(waker)) {
            self.driver = Some(waker.clone());
        }
    }

    /// True while a step runs or a request is in flight.
    pub(super) fn is_active(&self) -> bool {
        self.active > 0
    }

    pub(super) fn stopped(&self) -> Option<HandlerError> {
        self.stopped.clone()
    }

    /// Decides what happens after a poll of the handler that neither completed nor woke it.
    pub(super) fn advance(&mut self, is_canceled: bool) -> Progress {
        if let Some(error) = self.stopped.clone() {
            return Progress::Stop(error);
        }
        if let Some((seq, _)) = self.ready.first_key_value() {
            if *seq > self.complete_until {
                if self.active > 0 {
                    return Progress::Wait;
                }
                self.active += 1;
                return Progress::Refresh;
            }
            if let Some((_, key)) = self.ready.pop_first()
                && let Some(awaited) = self.awaited.get_mut(&key)
            {
                awaited.answer(Ok(()));
            }
            return Progress::Wait;
        }
        if self.active > 0 {
            return Progress::Wait;
        }
        if is_canceled {
            // A handler that awaits something else stops by itself.
            return if self.awaited.is_empty() { Progress::Wait } else { Progress::Stop(HandlerError::cancel()) };
        }
        let open = |key: &&String| self.entries.get(*key).is_some_and(|entry| entry.seq.is_none());
        let mut keys: Vec<String> = self.awaited.keys().filter(open).cloned().collect();
        if keys.is_empty() {
            return Progress::Wait;
        }
        keys.sort();
        Progress::Suspend(keys)
    }
}

/// Something that a suspended workflow could not continue: a step that runs.
pub(super) struct Activity(Arc<Replay>);

impl Drop for Activity {
    fn drop(&mut self) {
        self.0.lock().end_activity();
    }
}

/// An operation that the handler awaits, with what is recorded for it.
pub(super) struct Expected {
    pub(super) awaiting: Awaiting,
    pub(super) recorded: Option<RecordedState>,
}

pub(super) struct RecordedState {
    pub(super) is_resolved: bool,
    seq: Option<i64>,
    /// Number of attempts of a step.
    pub(super) attempt: i64,
    pub(super) has_drifted: bool,
    is_other_operation: bool,
}

/// The registration of an awaited operation. Dropping it withdraws it, for example when another branch won.
pub(super) struct Awaiting {
    replay: Arc<Replay>,
    key: String,
}

impl Awaiting {
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// Waits until the operation is resolved and the handler may see it.
    pub(super) async fn resolved(&self) -> Result<Outcome, HandlerError> {
        self.answered(false).await?;
        let mut journal = self.replay.lock();
        let entry = journal.entries.get_mut(&self.key).expect("a revealed operation is recorded");
        Ok(Outcome {
            existed: entry.existing.unwrap_or(true),
            result: entry.result.take(),
            error: entry.error.take(),
            key: self.key.clone(),
        })
    }

    /// Makes `recorded` possible. Called before the operation is submitted.
    pub(super) fn expect_record(&self) {
        self.replay.lock().awaited.entry(self.key.clone()).or_default().wants_record = true;
    }

    /// Waits until the operation is recorded, resolved or not.
    pub(super) async fn recorded(&self) -> Result<(), HandlerError> {
        self.answered(true).await
    }

    async fn answered(&self, wants_record: bool) -> Result<(), HandlerError> {
        std::future::poll_fn(|context: &mut Context<'_>| {
            let mut journal = self.replay.lock();
            let awaited = journal.awaited.entry(self.key.clone()).or_default();
            awaited.wants_record = wants_record;
            match awaited.answer.take() {
                Some(answer) => Poll::Ready(answer),
                None => {
                    awaited.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl Drop for Awaiting {
    fn drop(&mut self) {
        let mut journal = self.replay.lock();
        journal.awaited.remove(&self.key);
        journal.ready.retain(|_, key| *key != self.key);
    }
}

/// What an operation resolved with.
pub(super) struct Outcome {
    /// The operation was recorded before: its result is that of the journal.
    pub(super) existed: bool,
    pub(super) result: Option<Box<RawValue>>,
    pub(super) error: Option<JobError>,
    key: String,
}

impl Outcome {
    /// Decodes the result. A recorded error is permanent.
    pub(super) fn decode<T: DeserializeOwned>(self) -> Result<T, HandlerError> {
        if let Some(error) = self.error {
            return Err(recorded_error(error));
        }
        decode(&self.key, self.result.as_deref())
    }

    pub(super) fn is_timeout(&self) -> bool {
        self.error.as_ref().is_some_and(|error| error.code == "timeout")
    }
}

/// A recorded error as the error of a handler.
pub(super) fn recorded_error(JobError { code, message, retryable }: JobError) -> HandlerError {
    match retryable {
        true => HandlerError::retryable(code, message),
        false => HandlerError::permanent(code, message),
    }
}

/// Decodes a recorded result of the operation with this key.
pub(super) fn decode<T: DeserializeOwned>(key: &str, result: Option<&RawValue>) -> Result<T, HandlerError> {
    serde_json::from_str(result.map_or("null", RawValue::get)).map_err(|error| {
        let message = format!("The recorded result of {key:?} has another type: {error}.");
        HandlerError::permanent(code::WORKFLOW_DRIFT, message)
    })
}
