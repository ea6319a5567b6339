//! Unsettled outcomes: retained until the server has confirmed them, sent in batches.

use std::collections::VecDeque;

use uuid::Uuid;
use wire::{JobError, OutcomeKind, OutcomeRequest, Problem, RawValue, SettleRequest, WakeRequest};

use super::handler::{Ending, Verdict};

/// Outcomes per settle request, equal to the server's limit.
const MAX_BATCH_OUTCOMES: usize = 4_000;
/// The longest backoff that the server accepts: ten years, in seconds.
const BACKOFF_MAX_S: f64 = 10.0 * 366.0 * 24.0 * 3_600.0;
/// Bytes of results per settle request, well below the server's limit for a body.
const MAX_BATCH_BYTES: usize = 8 << 20;

#[derive(Default)]
pub(super) struct Outcomes {
    unsent: VecDeque<OutcomeRequest>,
    /// Parts of batches that were rejected or failed, to be sent separately.
    split_batches: VecDeque<Vec<OutcomeRequest>>,
}

impl Outcomes {
    pub(super) fn push(&mut self, outcome: OutcomeRequest) {
        self.unsent.push_back(outcome);
    }

    pub(super) fn len(&self) -> usize {
        self.unsent.len() + self.split_batches.iter().map(Vec::len).sum::<usize>()
    }

    /// True if there are at least `count` outcomes that have never been sent, and no parts of failed batches.
    pub(super) fn has_unsent(&self, count: usize) -> bool {
        self.unsent.len() >= count && self.split_batches.is_empty()
    }

    pub(super) fn has(&self, job: Uuid) -> bool {
        self.unsent.iter().chain(self.split_batches.iter().flatten()).any(|outcome| outcome.job_id == job)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.unsent.is_empty() && self.split_batches.is_empty()
    }

    /// Drops all outcomes and returns their number.
    pub(super) fn clear(&mut self) -> usize {
        let lost = self.len();
        *self = Self::default();
        lost
    }

    pub(super) fn next_batch(&mut self) -> Option<SettleRequest> {
        if let Some(outcomes) = self.split_batches.pop_front() {
            return Some(SettleRequest { outcomes });
        }
        let mut bytes = 0;
        let mut count = 0;
        for outcome in self.unsent.iter().take(MAX_BATCH_OUTCOMES) {
            bytes += size(outcome);
            if count > 0 && bytes > MAX_BATCH_BYTES {
                break;
            }
            count += 1;
        }
        (count > 0).then(|| SettleRequest { outcomes: self.unsent.drain(..count).collect() })
    }

    /// Returns the first half of a batch that got no response; the other half is sent later. A nearly full disk may
    /// accept a small commit where it rejects a large one, so repeating the whole batch might never succeed.
    pub(super) fn halve(&mut self, mut request: SettleRequest) -> SettleRequest {
        let rest = request.outcomes.split_off(request.outcomes.len().div_ceil(2));
        if !rest.is_empty() {
            self.split_batches.push_front(rest);
        }
        request
    }

    /// Handles a batch that the server rejected. The batch is halved until the invalid outcome is alone, so that it
    /// does not block the others. Its attempt then fails, which the server always accepts.
    pub(super) fn on_refused(&mut self, request: SettleRequest, problem: &Problem) {
        let mut outcomes = request.outcomes;
        if outcomes.len() > 1 {
            let second = outcomes.split_off(outcomes.len() / 2);
            self.split_batches.push_front(second);
            self.split_batches.push_front(outcomes);
            return;
        }
        let Some(outcome) = outcomes.pop() else { return };
        if outcome.error.as_ref().is_some_and(|error| error.code == REFUSED) {
            tracing::error!(job = %outcome.job_id, code = problem.code, "an outcome was rejected and is lost");
            return;
        }
        tracing::warn!(job = %outcome.job_id, code = problem.code, "an outcome was rejected; its attempt fails");
        let message = format!("The worker's outcome was rejected: {}", problem.detail);
        // A retryable failure stays retryable, whatever the reason for the rejection.
        let retryable = outcome.error.as_ref().is_some_and(|error| error.retryable);
        let error = JobError { code: REFUSED.into(), message, retryable };
        self.split_batches.push_front(vec![fail(outcome.job_id, outcome.epoch, error)]);
    }
}

const REFUSED: &str = "outcome_refused";
/// Maximum length of an error code, equal to the server's limit.
const MAX_CODE_BYTES: usize = 128;

/// Makes a code acceptable to the server: an invalid code must not cost the job its next attempt.
fn valid_code(code: &str) -> String {
    let mut valid: String = code.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    valid.truncate(valid.floor_char_boundary(MAX_CODE_BYTES));
    if valid.is_empty() { "error".into() } else { valid }
}

fn size(outcome: &OutcomeRequest) -> usize {
    let result = outcome.result.as_ref().map_or(0, |result| result.get().len());
    let error = outcome.error.as_ref().map_or(0, |error| error.message.len());
    let facts = outcome.facts.iter().flatten().map(|(name, value)| name.len() + value.get().len()).sum::<usize>();
    let payload = outcome.payload.as_ref().map_or(0, |payload| payload.get().len());
    let wake = outcome.wake.iter().flat_map(|wake| wake.any.iter().flatten()).map(String::len).sum::<usize>();
    result + error + facts + payload + wake
}

pub(super) fn plain(job_id: Uuid, epoch: i64, outcome: OutcomeKind) -> OutcomeRequest {
    OutcomeRequest {
        job_id,
        epoch,
        outcome,
        result: None,
        facts: None,
        error: None,
        delay_s: None,
        backoff_s: None,
        backoff_until: None,
        wake: None,
        payload: None,
    }
}

fn fail(job_id: Uuid, epoch: i64, error: JobError) -> OutcomeRequest {
    OutcomeRequest { error: Some(error), ..plain(job_id, epoch, OutcomeKind::Fail) }
}

/// Converts a handler's verdict to an outcome. Facts are sent only with success.
pub(super) fn of_verdict(job_id: Uuid, epoch: i64, verdict: Verdict) -> OutcomeRequest {
    match verdict.map_err(|error| error.0) {
        Ok(result) => OutcomeRequest { result, ..plain(job_id, epoch, OutcomeKind::Finish) },
        Err(Ending::Fail { code, message, retryable, backoff }) => {
            let backoff_s = backoff.map(|backoff| backoff.as_secs_f64().min(BACKOFF_MAX_S));
            let error = JobError { code: valid_code(&code), message, retryable };
            OutcomeRequest { backoff_s, ..fail(job_id, epoch, error) }
        }
        Err(Ending::Snooze(delay)) => {
            OutcomeRequest { delay_s: Some(delay.as_secs_f64()), ..plain(job_id, epoch, OutcomeKind::Snooze) }
        }
        Err(Ending::Cancel) => plain(job_id, epoch, OutcomeKind::Cancel),
        Err(Ending::Suspend(keys)) => {
            let wake = WakeRequest { any: Some(keys), ..WakeRequest::default() };
            OutcomeRequest { wake: Some(wake), ..plain(job_id, epoch, OutcomeKind::Suspend) }
        }
        Err(Ending::ContinueAs(payload)) => {
            let payload = RawValue::from_string(payload).ok();
            OutcomeRequest { payload, ..plain(job_id, epoch, OutcomeKind::ContinueAs) }
        }
    }
}
