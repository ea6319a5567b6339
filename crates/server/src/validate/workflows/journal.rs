//! Validation of journal writes. Each kind of operation accepts only its own members.

use std::fmt::Display;

use domain::limits::{
    APPROVAL_TITLE_BYTES, EVENT_MATCHES, JOURNAL_CHILDREN, JOURNAL_HASH_BYTES, JOURNAL_OPS, JOURNAL_WRITES,
    MAX_STEP_DURATION_MS, REASON_BYTES, RESULT_BYTES, WAIT_MAX_S,
};
use domain::workflows::journal::CANCEL_KEY;
use domain::{Epoch, JobId, Label, Right, Time};
use store::workflows::journal::write::{JournalWrite, NewJournalOperation, OperationInput, SleepEnd, StepOutcome};
use wire::{EventsSince, JournalOp, JournalOperation, JournalRequest, RawValue, Timestamp};

use crate::error::ApiError;
use crate::validate::FieldPath;
use crate::validate::queue::job::JobBuilder;
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

/// `builder` builds the children.
pub(crate) fn writes(builder: &JobBuilder, request: JournalRequest) -> Result<Vec<JournalWrite>, ApiError> {
    FieldPath::Body.at_most("writes", request.writes.len(), JOURNAL_WRITES, "writes")?;
    let ops = request.writes.iter().map(|write| write.ops.len()).sum();
    FieldPath::Body.at_most("writes", ops, JOURNAL_OPS, "operations")?;
    let writes = request.writes.into_iter().enumerate();
    writes.map(|(number, request)| write(builder, number, request)).collect()
}

fn write(builder: &JobBuilder, number: usize, request: wire::JournalWrite) -> Result<JournalWrite, ApiError> {
    let wire::JournalWrite { job_id, epoch, strict, ops } = request;
    let ops = ops.into_iter().enumerate();
    let ops = ops.map(|(op, request)| operation(builder, OperationPath { write: number, op }, request));
    Ok(JournalWrite { job: JobId::new(job_id), epoch: Epoch(epoch), strict, ops: ops.collect::<Result<_, _>>()? })
}

fn operation(
    builder: &JobBuilder,
    path: OperationPath,
    request: JournalOperation,
) -> Result<NewJournalOperation, ApiError> {
    let op = request.op;
    refuse_strays(path, &request)?;
    let JournalOperation { key, hash, result, error, attempt, duration_ms, topic, data, .. } = request;
    let key = Label::new(&key).map_err(|error| path.refuse("key", error))?;
    if key.as_str() == CANCEL_KEY {
        return Err(path.refuse("key", format_args!("cannot be {CANCEL_KEY}, which only the server records")));
    }
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
        JournalOp::Sleep => OperationInput::Sleep { until: sleep_end(path, request.until, request.for_s)? },
        JournalOp::Event => {
            let name = request.name.ok_or_else(|| path.refuse("name", "is missing: name the event"))?;
            let name = Label::new(&name).map_err(|error| path.refuse("name", error))?;
            let matches = request.matches.unwrap_or_default();
            if matches.len() > EVENT_MATCHES {
                return Err(path.refuse("match", format_args!("may have at most {EVENT_MATCHES} members")));
            }
            let timeout_ms = timeout(path, request.timeout_s)?;
            OperationInput::Event { name, matches, timeout_ms, since_now: request.since == Some(EventsSince::Now) }
        }
        JournalOp::Approval => {
            let place = FieldPath::Operation { write: path.write, op: path.op };
            let title = request.title.ok_or_else(|| path.refuse("title", "is missing: say what is to be approved"))?;
            let title = place.free_text("title", title, APPROVAL_TITLE_BYTES)?;
            let detail = request.detail.map(|detail| place.free_text("detail", detail, REASON_BYTES)).transpose()?;
            let right = request.right.unwrap_or_else(|| Right::Operate.as_str().to_owned());
            if !Right::ALL.iter().any(|known| known.as_str() == right) {
                return Err(path.refuse("right", "must be the name of a right"));
            }
            OperationInput::Approval { title, detail, right, timeout_ms: timeout(path, request.timeout_s)? }
        }
        JournalOp::Child => {
            let jobs = request.jobs.ok_or_else(|| path.refuse("jobs", "is missing: list the jobs to start"))?;
            if jobs.is_empty() || jobs.len() > JOURNAL_CHILDREN {
                let detail = format_args!("must have 1 to {JOURNAL_CHILDREN} jobs; it has {}", jobs.len());
                return Err(path.refuse("jobs", detail));
            }
            let jobs = jobs
                .into_iter()
                .enumerate()
                .map(|(number, job)| builder.child(FieldPath::Child { write: path.write, op: path.op, number }, job));
            OperationInput::Child { jobs: jobs.collect::<Result<_, _>>()?, lanes: Vec::new() }
        }
    };
    Ok(NewJournalOperation { key, hash, input })
}

/// Refuses members that belong to other operations.
fn refuse_strays(path: OperationPath, request: &JournalOperation) -> Result<(), ApiError> {
    use JournalOp::{Approval, Child, Event, Publish, Sleep, Step};
    let members: [(&str, bool, &[JournalOp], &str); 15] = [
        ("result", request.result.is_some(), &[Step], "step"),
        ("error", request.error.is_some(), &[Step], "step"),
        ("attempt", request.attempt.is_some(), &[Step], "step"),
        ("duration_ms", request.duration_ms.is_some(), &[Step], "step"),
        ("topic", request.topic.is_some(), &[Publish], "publish"),
        ("data", request.data.is_some(), &[Publish], "publish"),
        ("until", request.until.is_some(), &[Sleep], "sleep"),
        ("for_s", request.for_s.is_some(), &[Sleep], "sleep"),
        ("name", request.name.is_some(), &[Event], "event"),
        ("match", request.matches.is_some(), &[Event], "event"),
        ("since", request.since.is_some(), &[Event], "event"),
        ("timeout_s", request.timeout_s.is_some(), &[Event, Approval], "event or approval"),
        ("title", request.title.is_some(), &[Approval], "approval"),
        ("detail", request.detail.is_some(), &[Approval], "approval"),
        ("jobs", request.jobs.is_some(), &[Child], "child"),
    ];
    let stray = members.into_iter().find(|(_, given, ops, _)| *given && !ops.contains(&request.op));
    if let Some((member, .., allowed_with)) = stray {
        return Err(path.refuse(member, format_args!("is allowed only with the operation {allowed_with}; remove it")));
    }
    match request.right.is_some() && request.op != Approval {
        true => Err(path.refuse("right", "is allowed only with the operation approval; remove it")),
        false => Ok(()),
    }
}

fn sleep_end(path: OperationPath, until: Option<Timestamp>, for_s: Option<f64>) -> Result<SleepEnd, ApiError> {
    match (until, for_s) {
        (Some(until), None) => Ok(SleepEnd::At(Time::from_micros(until.as_microsecond()))),
        (None, Some(for_s)) => Ok(SleepEnd::After { delay_ms: millis(path, "for_s", for_s)? }),
        _ => Err(path.refuse("for_s", "or until is required, and not both")),
    }
}

fn timeout(path: OperationPath, timeout_s: Option<f64>) -> Result<Option<i64>, ApiError> {
    timeout_s.map(|timeout_s| millis(path, "timeout_s", timeout_s)).transpose()
}

fn millis(path: OperationPath, member: &str, seconds: f64) -> Result<i64, ApiError> {
    if !(0.0..=WAIT_MAX_S as f64).contains(&seconds) {
        return Err(path.refuse(member, format_args!("must be from 0 to {WAIT_MAX_S}; it is {seconds}")));
    }
    Ok((seconds * 1_000.0).ceil() as i64)
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
