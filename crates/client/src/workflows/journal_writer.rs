//! Sends the journal writes of a worker: operations of all its jobs share requests. One request is in flight at a time,
//! and operations that arrive meanwhile form the next one, so that a job's operations are recorded in order.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;
use wire::{JournalEntry, JournalOperation, JournalRequest, JournalResult, JournalWrite, OutcomeStatus, Problem};

use crate::backend::{Backend, BackendError};
use crate::queue::worker::session::Backoff;

/// Operations per request, equal to the server's limit.
const MAX_BATCH_OPERATIONS: usize = 1_000;
/// Bytes of operations per request, well below the server's limit for a body.
const MAX_BATCH_BYTES: usize = 8 << 20;

/// An operation to record.
pub(crate) struct Submission {
    /// The worker that has claimed the job.
    pub(crate) worker: Uuid,
    pub(crate) job: Uuid,
    pub(crate) epoch: i64,
    /// Refuse an operation that is recorded with another digest.
    pub(crate) strict: bool,
    pub(crate) operation: JournalOperation,
    pub(crate) on_answer: OnAnswer,
}

/// Receives what is recorded for one operation.
pub(crate) type OnAnswer = Box<dyn FnOnce(Result<JournalEntry, JournalFailure>) + Send>;

/// Why an operation was not recorded.
#[derive(Clone, Debug)]
pub(crate) enum JournalFailure {
    /// Another claim owns the job, or the job has ended.
    ClaimLost,
    /// A quota is exhausted.
    Throttled(Box<Problem>),
    /// The operation was rejected; repeating it is pointless.
    Refused(Box<Problem>),
}

pub(crate) struct JournalWriter<B> {
    backend: Arc<B>,
    queue: Mutex<WriteQueue>,
    /// Cancelled when the worker stops: unsent operations are dropped.
    closed: CancellationToken,
}

#[derive(Default)]
struct WriteQueue {
    unsent: VecDeque<Submission>,
    /// A task that sends is running.
    is_sending: bool,
}

impl<B: Backend> JournalWriter<B> {
    pub(crate) fn new(backend: Arc<B>) -> Arc<Self> {
        Arc::new(Self { backend, queue: Mutex::default(), closed: CancellationToken::new() })
    }

    /// Adds an operation to the next request.
    pub(crate) fn submit(self: &Arc<Self>, tasks: &TaskTracker, submission: Submission) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.unsent.push_back(submission);
        if !queue.is_sending {
            queue.is_sending = true;
            let writer = self.clone();
            tasks.spawn(async move { writer.closed.clone().run_until_cancelled_owned(writer.send_all()).await });
        }
    }

    pub(crate) fn close(&self) {
        self.closed.cancel();
    }

    async fn send_all(self: Arc<Self>) {
        while let Some(batch) = self.next_batch() {
            self.send(batch).await;
        }
    }

    /// The next operations of one worker, or `None` if there are none, which ends the task.
    fn next_batch(&self) -> Option<Vec<Submission>> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = 0;
        let mut count = 0;
        let worker = queue.unsent.front().map(|submission| submission.worker);
        for submission in queue.unsent.iter().take(MAX_BATCH_OPERATIONS) {
            bytes += size(&submission.operation);
            if Some(submission.worker) != worker || (count > 0 && bytes > MAX_BATCH_BYTES) {
                break;
            }
            count += 1;
        }
        queue.is_sending = count > 0;
        queue.is_sending.then(|| queue.unsent.drain(..count).collect())
    }

    /// Sends a batch until it is answered. A batch that was rejected is halved until the operation at fault is alone, so
    /// that it does not fail the others.
    async fn send(&self, batch: Vec<Submission>) {
        let mut backoff = Backoff::new();
        let mut parts = vec![batch];
        while let Some(part) = parts.pop() {
            let request = WriteRequest::of(part);
            let problem = loop {
                match self.backend.journal(request.worker, &request.body).await {
                    Ok(written) => break Ok(written.results),
                    Err(BackendError::LeaseExpired) => break Err(JournalFailure::ClaimLost),
                    Err(BackendError::Throttled(problem)) => break Err(JournalFailure::Throttled(problem)),
                    Err(BackendError::Refused(problem)) => break Err(JournalFailure::Refused(problem)),
                    Err(error) => {
                        let wait = backoff.next();
                        let operations = request.recipients.len();
                        tracing::warn!(worker = %request.worker, %error, cause = error.cause(), operations, "a journal write failed; retrying");
                        tokio::time::sleep(wait).await;
                    }
                }
            };
            match problem {
                Ok(results) => request.answer(results),
                Err(JournalFailure::ClaimLost) => request.fail(&JournalFailure::ClaimLost),
                Err(failure) if request.recipients.len() == 1 => request.fail(&failure),
                Err(_) => {
                    let mut first = request.into_submissions();
                    let second = first.split_off(first.len() / 2);
                    parts.extend([second, first]);
                }
            }
        }
    }
}

/// The approximate size of an operation in a request.
fn size(operation: &JournalOperation) -> usize {
    let raw = |value: &Option<Box<wire::RawValue>>| value.as_ref().map_or(0, |value| value.get().len());
    let error = operation.error.as_ref().map_or(0, |error| error.message.len());
    let jobs = operation.jobs.iter().flatten().map(|job| 256 + raw(&job.payload)).sum::<usize>();
    256 + operation.key.len() + raw(&operation.result) + raw(&operation.data) + error + jobs
}

/// A request with the recipients of its answers.
struct WriteRequest {
    worker: Uuid,
    body: JournalRequest,
    /// In the order of submission: the index of the write, that of the operation in it, and who gets the answer.
    recipients: Vec<(usize, usize, OnAnswer)>,
}

impl WriteRequest {
    fn of(submissions: Vec<Submission>) -> Self {
        let worker = submissions.first().map(|submission| submission.worker).unwrap_or_default();
        let mut writes: Vec<JournalWrite> = Vec::new();
        let mut numbers: HashMap<(Uuid, i64), usize> = HashMap::new();
        let mut recipients = Vec::with_capacity(submissions.len());
        for Submission { job, epoch, strict, operation, on_answer, .. } in submissions {
            let number = *numbers.entry((job, epoch)).or_insert(writes.len());
            if number == writes.len() {
                writes.push(JournalWrite { job_id: job, epoch, strict, ops: Vec::new() });
            }
            recipients.push((number, writes[number].ops.len(), on_answer));
            writes[number].ops.push(operation);
        }
        Self { worker, body: JournalRequest { writes }, recipients }
    }

    fn into_submissions(self) -> Vec<Submission> {
        let mut writes = self.body.writes;
        let submission = |(number, place, on_answer): (usize, usize, OnAnswer)| {
            let write: &mut JournalWrite = &mut writes[number];
            let operation = std::mem::take(&mut write.ops[place]);
            let (job, epoch, strict) = (write.job_id, write.epoch, write.strict);
            Submission { worker: self.worker, job, epoch, strict, operation, on_answer }
        };
        self.recipients.into_iter().map(submission).collect()
    }

    fn answer(self, results: Vec<JournalResult>) {
        let mut results: Vec<_> = results
            .into_iter()
            .map(|result| match result.status {
                OutcomeStatus::Applied => result.entries.into_iter().map(Some).collect(),
                _ => Vec::new(),
            })
            .collect();
        for (number, place, on_answer) in self.recipients {
            let entry = results.get_mut(number).and_then(|entries| entries.get_mut(place)).and_then(Option::take);
            on_answer(entry.ok_or(JournalFailure::ClaimLost));
        }
    }

    fn fail(self, failure: &JournalFailure) {
        for (.., on_answer) in self.recipients {
            on_answer(Err(failure.clone()));
        }
    }
}
