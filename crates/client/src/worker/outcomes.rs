//! Outcomes on their way to the server: kept until it has answered, sent in batches as large as it takes.

use std::collections::VecDeque;

use uuid::Uuid;
use wire::{JobError, OutcomeKind, OutcomeRequest, Problem, SettleRequest};

use super::handler::{Ending, Verdict};

/// Outcomes in one settle, as many as the server takes.
const BATCH: usize = 4_000;
/// Bytes of results in one settle, well below what the server takes as one body.
const BATCH_BYTES: usize = 8 << 20;

#[derive(Default)]
pub(super) struct Outcomes {
    fresh: VecDeque<OutcomeRequest>,
    /// Parts of batches that were refused or failed, to be sent by themselves.
    parts: VecDeque<Vec<OutcomeRequest>>,
}

impl Outcomes {
    pub(super) fn push(&mut self, outcome: OutcomeRequest) {
        self.fresh.push_back(outcome);
    }

    pub(super) fn len(&self) -> usize {
        self.fresh.len() + self.parts.iter().map(Vec::len).sum::<usize>()
    }

    /// Whether there are as many, all of them new to the server.
    pub(super) fn has_new(&self, count: usize) -> bool {
        self.fresh.len() >= count && self.parts.is_empty()
    }

    pub(super) fn has(&self, job: Uuid) -> bool {
        self.fresh.iter().chain(self.parts.iter().flatten()).any(|outcome| outcome.job_id == job)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.fresh.is_empty() && self.parts.is_empty()
    }

    /// Drops everything and says how many that were.
    pub(super) fn clear(&mut self) -> usize {
        let lost = self.len();
        *self = Self::default();
        lost
    }

    pub(super) fn next_batch(&mut self) -> Option<SettleRequest> {
        if let Some(outcomes) = self.parts.pop_front() {
            return Some(SettleRequest { outcomes });
        }
        let mut bytes = 0;
        let mut count = 0;
        for outcome in self.fresh.iter().take(BATCH) {
            bytes += size(outcome);
            if count > 0 && bytes > BATCH_BYTES {
                break;
            }
            count += 1;
        }
        (count > 0).then(|| SettleRequest { outcomes: self.fresh.drain(..count).collect() })
    }

    /// What to send next of a batch that got no answer; the rest follows by itself. A disk that is nearly full takes a small
    /// commit where it refuses a large one, and a batch that is always sent whole would never be told.
    pub(super) fn halved(&mut self, mut request: SettleRequest) -> SettleRequest {
        let rest = request.outcomes.split_off(request.outcomes.len().div_ceil(2));
        if !rest.is_empty() {
            self.parts.push_front(rest);
        }
        request
    }

    /// Takes back a batch that the server does not accept as it is. One bad outcome must not keep the others from being
    /// told, so the batch is halved until the bad one stands alone; its attempt then fails, which can always be said.
    pub(super) fn refused(&mut self, request: SettleRequest, problem: &Problem) {
        let mut outcomes = request.outcomes;
        if outcomes.len() > 1 {
            let second = outcomes.split_off(outcomes.len() / 2);
            self.parts.push_front(second);
            self.parts.push_front(outcomes);
            return;
        }
        let Some(outcome) = outcomes.pop() else { return };
        if outcome.error.as_ref().is_some_and(|error| error.code == REFUSED) {
            tracing::error!(job = %outcome.job_id, code = problem.code, "an outcome was refused and is lost");
            return;
        }
        tracing::warn!(job = %outcome.job_id, code = problem.code, "an outcome was refused; its attempt fails");
        let message = format!("The worker's outcome was refused: {}", problem.detail);
        // What failed and may be tried again may be so whatever the server thinks of how it was told.
        let retryable = outcome.error.as_ref().is_some_and(|error| error.retryable);
        let error = JobError { code: REFUSED.into(), message, retryable };
        self.parts.push_front(vec![fail(outcome.job_id, outcome.epoch, error)]);
    }
}

const REFUSED: &str = "outcome_refused";
/// Bytes of an error's code, as many as the server takes.
const CODE_BYTES: usize = 128;

/// A code as the server takes it: whatever a handler calls its failure, it must not cost the job its next attempt.
fn fit(code: &str) -> String {
    let mut fit: String = code.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    fit.truncate(fit.floor_char_boundary(CODE_BYTES));
    if fit.is_empty() { "error".into() } else { fit }
}

fn size(outcome: &OutcomeRequest) -> usize {
    let result = outcome.result.as_ref().map_or(0, |result| result.get().len());
    let error = outcome.error.as_ref().map_or(0, |error| error.message.len());
    let facts = outcome.facts.iter().flatten().map(|(name, value)| name.len() + value.get().len()).sum::<usize>();
    result + error + facts
}

pub(super) fn plain(job_id: Uuid, epoch: i64, outcome: OutcomeKind) -> OutcomeRequest {
    OutcomeRequest { job_id, epoch, outcome, result: None, facts: None, error: None, delay_s: None }
}

fn fail(job_id: Uuid, epoch: i64, error: JobError) -> OutcomeRequest {
    OutcomeRequest { error: Some(error), ..plain(job_id, epoch, OutcomeKind::Fail) }
}

/// What the server is told of a handler's verdict; facts count only with success.
pub(super) fn of_verdict(job_id: Uuid, epoch: i64, verdict: Verdict) -> OutcomeRequest {
    match verdict.map_err(|error| error.0) {
        Ok(result) => OutcomeRequest { result, ..plain(job_id, epoch, OutcomeKind::Finish) },
        Err(Ending::Fail { code, message, retryable }) => {
            fail(job_id, epoch, JobError { code: fit(&code), message, retryable })
        }
        Err(Ending::Snooze(delay)) => {
            OutcomeRequest { delay_s: Some(delay.as_secs_f64()), ..plain(job_id, epoch, OutcomeKind::Snooze) }
        }
        Err(Ending::Cancel) => plain(job_id, epoch, OutcomeKind::Cancel),
    }
}
