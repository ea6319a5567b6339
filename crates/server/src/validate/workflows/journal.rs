//! Validation of journal writes. Each kind of operation accepts only its own members.

use std::fmt::Display;

use domain::limits::{JOURNAL_HASH_BYTES, JOURNAL_OPS, JOURNAL_WRITES, MAX_STEP_DURATION_MS, RESULT_BYTES};
use domain::{Epoch, JobId, Label};
use store::workflows::journal::write::{JournalWrite, NewOperation, OperationInput, StepOutcome};
use wire::{JournalOp, JournalOperation, JournalRequest, RawValue};

use crate::error::ApiError;
use crate::validate::FieldPath;
use crate::validate::queue::outcome::job_error;

/// The place of an operation in the body: `writes[1].ops[2]`.
#[derive(Clone, Copy)]
pub(crate) struct OperationPath {
    pub(crate) write: usize,
    pub(crate) op: usize,
}

impl OperationPath {
    pub(crate) fn field(self, member: &str) -> String {
        format!("writes[{}].ops[{}].{member}", self.write, self.op)
    }

    fn refuse(self, member: &str, detail: impl Display) -> ApiError {
        ApiError::invalid_field(self.field(member), detail)
    }
}

pub(crate) fn writes(request: JournalRequest) -> Result<Vec<JournalWrite>, ApiError> {
    FieldPath::Body.at_most("writes", request.writes.len(), JOURNAL_WRITES, "writes")?;
    let ops = request.writes.iter().map(|write| write.ops.len()).sum();
    FieldPath::Body.at_most("writes", ops, JOURNAL_OPS, "operations")?;
    let writes = request.writes.into_iter().enumerate();
    writes.map(|(number, request)| write(number, request)).collect()
}

fn write(number: usize, request: wire::JournalWrite) -> Result<JournalWrite, ApiError> {
    let wire::JournalWrite { job_id, epoch, strict, ops } = request;
    let ops = ops.into_iter().enumerate();
    let ops = ops.map(|(op, request)| operation(OperationPath { write: number, op }, request));
    Ok(JournalWrite { job: JobId::new(job_id), epoch: Epoch(epoch), strict, ops: ops.collect::<Result<_, _>>()? })
}

fn operation(path: OperationPath, request: JournalOperation) -> Result<NewOperation, ApiError> {
    let JournalOperation { op, key, hash, result, error, attempt, duration_ms, topic, data } = request;
    let (is_step, is_publish) = (op == JournalOp::Step, op == JournalOp::Publish);
    let members = [
        ("result", result.is_some() && !is_step, "step"),
        ("error", error.is_some() && !is_step, "step"),
        ("attempt", attempt.is_some() && !is_step, "step"),
        ("duration_ms", duration_ms.is_some() && !is_step, "step"),
        ("topic", topic.is_some() && !is_publish, "publish"),
        ("data", data.is_some() && !is_publish, "publish"),
    ];
    if let Some((member, _, allowed_with)) = members.into_iter().find(|(_, stray, _)| *stray) {
        return Err(path.refuse(member, format_args!("is allowed only with the operation {allowed_with}; remove it")));
    }
    let key = Label::new(&key).map_err(|error| path.refuse("key", error))?;
    if let Some(hash) = &hash
        && (hash.is_empty() || hash.len() > JOURNAL_HASH_BYTES || !hash.bytes().all(|byte| byte.is_ascii_graphic()))
    {
        return Err(path.refuse("hash", format_args!("must have 1 to {JOURNAL_HASH_BYTES} visible ASCII characters")));
    }
    let input = match op {
        JournalOp::Step => {
            let outcome = match (result, error) {
                (Some(result), None) => StepOutcome::Result(content(path, "result", result)?),
                (None, Some(error)) => {
                    let step = FieldPath::Operation { write: path.write, op: path.op };
                    StepOutcome::Error(job_error(step, Some(error))?)
                }
                (Some(_), Some(_)) => return Err(path.refuse("error", "cannot be combined with result; remove one")),
                (None, None) => return Err(path.refuse("result", "is missing: send the result or the error")),
            };
            let attempt =
                attempt.map(|attempt| between(path, "attempt", attempt, 1, i64::from(i32::MAX))).transpose()?;
            let duration_ms = duration_ms
                .map(|duration_ms| between(path, "duration_ms", duration_ms, 0, MAX_STEP_DURATION_MS))
                .transpose()?;
            OperationInput::Step { outcome, attempt, duration_ms }
        }
        JournalOp::Publish => {
            let topic = topic.ok_or_else(|| path.refuse("topic", "is missing: name the topic of the event"))?;
            let topic = Label::new(&topic).map_err(|error| path.refuse("topic", error))?;
            let data = data.ok_or_else(|| path.refuse("data", "is missing: send the data of the event"))?;
            OperationInput::Publish { topic, data: content(path, "data", data)? }
        }
    };
    Ok(NewOperation { key, hash, input })
}

fn content(path: OperationPath, member: &str, value: Box<RawValue>) -> Result<Box<str>, ApiError> {
    let value: Box<str> = value.into();
    if value.len() <= RESULT_BYTES {
        return Ok(value);
    }
    let detail = "store larger values as an artifact";
    Err(path.refuse(member, format_args!("may have at most {RESULT_BYTES} bytes, not {}; {detail}", value.len())))
}

fn between(path: OperationPath, member: &str, value: i64, min: i64, max: i64) -> Result<i64, ApiError> {
    if (min..=max).contains(&value) {
        return Ok(value);
    }
    Err(path.refuse(member, format_args!("must be from {min} to {max}; it is {value}")))
}
