//! The journal of a claimed job as the wire contract shows it, and the operations to record. The cursor of a page is the
//! position of its last entry.

use client::BackendError;
use domain::limits::{
    APPROVAL_TITLE_BYTES, EVENT_MATCHES, JOURNAL_CHILDREN, JOURNAL_HASH_BYTES, REASON_BYTES, RESULT_BYTES, WAIT_MAX_S,
};
use domain::workflows::journal::JournalError;
use domain::{Epoch, JobError, JobId, Label, Right, Time};
use store::StoreError;
use store::queue::enqueue::NewJob;
use store::workflows::journal::JournalEntry;
use store::workflows::journal::read::JournalPage;
use store::workflows::journal::write::{
    JournalResult, JournalWrite, NewJournalOperation, OperationInput, SleepEnd, StepOutcome,
};
use wire::problem::code;
use wire::{ClaimedJournal, EventsSince, JournalOp, JournalOperation, JournalRequest, RawValue};

use crate::backend::{problem, settle_status, timestamp, unavailable};
use crate::job::JobBuilder;

pub(crate) fn page(page: JournalPage) -> Result<ClaimedJournal, BackendError> {
    let entries = page.entries.into_iter().map(|recorded| entry(recorded, None)).collect::<Result<_, _>>()?;
    Ok(ClaimedJournal { entries, next_cursor: page.next.map(|position| position.to_string()) })
}

/// `existing`: the entry answers a write and was resolved before it.
pub(crate) fn entry(entry: JournalEntry, existing: Option<bool>) -> Result<wire::JournalEntry, BackendError> {
    let raw =
        |json| RawValue::from_string(json).map_err(|error| unavailable(StoreError::unexpected(error.to_string())));
    let attempts = entry.attempts.into_iter().map(|failed| wire::JournalAttempt {
        attempt: failed.attempt,
        at: timestamp(Time::from_micros(failed.at)),
        code: failed.code,
        message: failed.message,
    });
    Ok(wire::JournalEntry {
        key: entry.key.to_string(),
        op: entry.op.to_string(),
        status: if entry.seq.is_some() { "resolved" } else { "open" }.into(),
        existing,
        position: entry.position,
        seq: entry.seq,
        hash: entry.hash,
        attempt: entry.attempt,
        attempts: attempts.collect(),
        result: entry.result.map(raw).transpose()?,
        error: entry.error.map(|error| wire::JobError {
            code: error.code,
            message: error.message,
            retryable: error.retryable,
        }),
        bytes: entry.bytes,
        duration_ms: entry.duration_ms,
        created_at: timestamp(entry.created_at),
        resolved_at: entry.resolved_at.map(timestamp),
        input: entry.input.map(raw).transpose()?,
        due_at: entry.due_at.map(timestamp),
    })
}

pub(crate) fn result(job: JobId, result: JournalResult) -> Result<wire::JournalResult, BackendError> {
    let entries = result.entries.into_iter().map(|recorded| entry(recorded.entry, Some(recorded.existing)));
    Ok(wire::JournalResult {
        job_id: job.uuid(),
        status: settle_status(result.status),
        entries: entries.collect::<Result<_, _>>()?,
    })
}

/// A refusal with the codes of the HTTP API.
pub(crate) fn refused(write: usize, op: usize, error: &JournalError) -> BackendError {
    let (status, code) = match error {
        JournalError::TooManyEntries | JournalError::TooManyBytes { .. } => (409, code::JOURNAL_FULL),
        JournalError::Drift { .. } | JournalError::OtherOperation { .. } => (409, code::WORKFLOW_DRIFT),
        JournalError::AnswerTooLarge { .. } => (422, code::INVALID_FIELD),
    };
    problem(status, code, error.to_string(), Some(&format!("writes[{write}].ops[{op}].key")))
}

pub(crate) fn writes(request: &JournalRequest) -> Result<Vec<JournalWrite>, BackendError> {
    let write = |(number, write): (usize, &wire::JournalWrite)| {
        let ops = write.ops.iter().enumerate().map(|(op, request)| {
            operation(request).map_err(|(member, detail)| {
                let field = format!("writes[{number}].ops[{op}].{member}");
                problem(422, code::INVALID_FIELD, format!("{field} {detail}"), Some(&field))
            })
        });
        Ok(JournalWrite {
            job: JobId::new(write.job_id),
            epoch: Epoch(write.epoch),
            strict: write.strict,
            ops: ops.collect::<Result<_, _>>()?,
        })
    };
    request.writes.iter().enumerate().map(write).collect()
}

/// A member that is refused, and why.
type RefusedMember = (&'static str, String);

fn operation(request: &JournalOperation) -> Result<NewJournalOperation, RefusedMember> {
    let label = |member, text: &str| Label::new(text).map_err(|error| (member, error.to_string()));
    let key = label("key", &request.key)?;
    let hash = request.hash.clone();
    if hash.as_ref().is_some_and(|hash| hash.len() > JOURNAL_HASH_BYTES) {
        return Err(("hash", format!("may have at most {JOURNAL_HASH_BYTES} bytes")));
    }
    let input = match request.op {
        JournalOp::Step => {
            let outcome = match (&request.result, &request.error) {
                (Some(result), None) => StepOutcome::Result(content("result", result)?),
                (None, Some(wire::JobError { code, message, retryable })) => {
                    StepOutcome::Error(JobError { code: code.clone(), message: message.clone(), retryable: *retryable })
                }
                _ => return Err(("result", "or error is required, and not both".into())),
            };
            let (attempt, duration_ms) = (request.attempt, request.duration_ms);
            OperationInput::Step { outcome, attempt, duration_ms }
        }
        JournalOp::Publish => {
            let topic = label("topic", request.topic.as_deref().unwrap_or_default())?;
            let data = request.data.as_ref().ok_or_else(|| ("data", "is missing".to_owned()))?;
            OperationInput::Publish { topic, data: content("data", data)? }
        }
        JournalOp::Sleep => {
            let until = match (request.until, request.for_s) {
                (Some(until), None) => SleepEnd::At(Time::from_micros(until.as_microsecond())),
                (None, Some(for_s)) => SleepEnd::After { delay_ms: millis("for_s", for_s)? },
                _ => return Err(("for_s", "or until is required, and not both".into())),
            };
            OperationInput::Sleep { until }
        }
        JournalOp::Event => {
            let matches = request.matches.clone().unwrap_or_default();
            if matches.len() > EVENT_MATCHES {
                return Err(("match", format!("may have at most {EVENT_MATCHES} members")));
            }
            OperationInput::Event {
                name: label("name", request.name.as_deref().unwrap_or_default())?,
                matches,
                timeout_ms: timeout(request)?,
                since_now: request.since == Some(EventsSince::Now),
            }
        }
        JournalOp::Approval => {
            let right = request.right.clone().unwrap_or_else(|| Right::Operate.as_str().to_owned());
            if !Right::ALL.iter().any(|known| known.as_str() == right) {
                return Err(("right", "must be the name of a right".into()));
            }
            OperationInput::Approval {
                title: text("title", request.title.as_ref(), APPROVAL_TITLE_BYTES)?.unwrap_or_default(),
                detail: text("detail", request.detail.as_ref(), REASON_BYTES)?,
                right,
                timeout_ms: timeout(request)?,
            }
        }
        JournalOp::Child => {
            let jobs = request.jobs.as_deref().unwrap_or_default();
            if jobs.is_empty() || jobs.len() > JOURNAL_CHILDREN {
                return Err(("jobs", format!("must have 1 to {JOURNAL_CHILDREN} jobs; it has {}", jobs.len())));
            }
            let new = |job| JobBuilder::of_request(job).map(|job| job.new);
            let jobs: Result<Vec<NewJob>, String> = jobs.iter().map(new).collect();
            OperationInput::Child { jobs: jobs.map_err(|detail| ("jobs", detail))?, lanes: Vec::new() }
        }
    };
    Ok(NewJournalOperation { key, hash, input })
}

fn content(member: &'static str, value: &RawValue) -> Result<Box<str>, RefusedMember> {
    match value.get().len() {
        length if length > RESULT_BYTES => {
            Err((member, format!("may have at most {RESULT_BYTES} bytes, not {length}")))
        }
        _ => Ok(value.get().into()),
    }
}

fn text(member: &'static str, text: Option<&String>, max: usize) -> Result<Option<String>, RefusedMember> {
    match text {
        Some(text) if text.len() > max => Err((member, format!("may have at most {max} bytes, not {}", text.len()))),
        text => Ok(text.cloned()),
    }
}

fn timeout(request: &JournalOperation) -> Result<Option<i64>, RefusedMember> {
    request.timeout_s.map(|timeout_s| millis("timeout_s", timeout_s)).transpose()
}

fn millis(member: &'static str, seconds: f64) -> Result<i64, RefusedMember> {
    match (0.0..=WAIT_MAX_S as f64).contains(&seconds) {
        true => Ok((seconds * 1_000.0).ceil() as i64),
        false => Err((member, format!("must be from 0 to {WAIT_MAX_S}, not {seconds}"))),
    }
}
