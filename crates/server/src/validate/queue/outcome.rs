//! Validation of outcomes of attempts. Each kind of outcome accepts only its own members.

use domain::limits::{ERROR_CODE_BYTES, ERROR_MESSAGE_BYTES, RESULT_BYTES, SETTLE_OUTCOMES, WAIT_MAX_S, WAKE_KEYS};
use domain::{Epoch, JobError, JobId, Time};
use store::queue::settle::{ChosenBackoff, End, Outcome};
use store::workflows::journal::Wake;
use wire::{OutcomeKind, OutcomeRequest, RawValue, SettleRequest, Timestamp, WakeRequest};

use crate::error::ApiError;
use crate::validate::FieldPath;

pub(crate) fn outcomes(request: SettleRequest, now: Time) -> Result<Vec<Outcome>, ApiError> {
    FieldPath::Body.at_most("outcomes", request.outcomes.len(), SETTLE_OUTCOMES, "outcomes")?;
    let outcomes = request.outcomes.into_iter().enumerate();
    outcomes.map(|(number, request)| outcome(FieldPath::Item { of: "outcomes", number }, request, now)).collect()
}

fn outcome(path: FieldPath, request: OutcomeRequest, now: Time) -> Result<Outcome, ApiError> {
    let OutcomeRequest {
        job_id,
        epoch,
        outcome,
        result,
        facts,
        error,
        delay_s,
        backoff_s,
        backoff_until,
        wake,
        payload,
    } = request;
    let (wants_result, wants_error, wants_delay) =
        (outcome == OutcomeKind::Finish, outcome == OutcomeKind::Fail, outcome == OutcomeKind::Snooze);
    let members = [
        ("result", result.is_some() && !wants_result, "finish"),
        ("facts", facts.is_some() && !wants_result, "finish"),
        ("error", error.is_some() && !wants_error, "fail"),
        ("delay_s", delay_s.is_some() && !wants_delay, "snooze"),
        ("backoff_s", backoff_s.is_some() && !wants_error, "fail"),
        ("backoff_until", backoff_until.is_some() && !wants_error, "fail"),
        ("wake", wake.is_some() && outcome != OutcomeKind::Suspend, "suspend"),
        ("payload", payload.is_some() && outcome != OutcomeKind::ContinueAs, "continue_as"),
    ];
    if let Some((member, _, allowed_with)) = members.into_iter().find(|(_, stray, _)| *stray) {
        return Err(path.refuse(member, format_args!("is allowed only with the outcome {allowed_with}; remove it")));
    }
    let end = match outcome {
        OutcomeKind::Finish => {
            let result = result.map(|result| checked_result(path, result)).transpose()?;
            match facts.map(|facts| crate::validate::fleet::subject::facts(path, facts)).transpose()? {
                Some(facts) => End::FinishWith { result, facts },
                None => End::Finish(result),
            }
        }
        OutcomeKind::Fail => {
            let error = job_error(path, error)?;
            match chosen_backoff(path, backoff_s, backoff_until, now)? {
                Some(backoff) => End::FailUntil { error, backoff },
                None => End::Fail(error),
            }
        }
        OutcomeKind::Cancel => End::Cancel,
        OutcomeKind::Snooze => {
            let delay_s =
                delay_s.ok_or_else(|| path.refuse("delay_s", "is missing: set the number of seconds to snooze"))?;
            let delay_s = path.between("delay_s", delay_s, 0.0, WAIT_MAX_S as f64)?;
            End::Snooze { delay_ms: (delay_s * 1_000.0).ceil() as i64 }
        }
        OutcomeKind::Release => End::Release,
        OutcomeKind::Suspend => End::Suspend(wake_of(path, wake)?),
        OutcomeKind::ContinueAs => {
            let payload =
                payload.ok_or_else(|| path.refuse("payload", "is missing: send the payload of the next job"))?;
            End::ContinueAs { payload: checked(path, "payload", payload)? }
        }
    };
    Ok(Outcome { job: JobId::new(job_id), epoch: Epoch(epoch), end })
}

fn chosen_backoff(
    path: FieldPath,
    seconds: Option<f64>,
    until: Option<Timestamp>,
    now: Time,
) -> Result<Option<ChosenBackoff>, ApiError> {
    Ok(match (seconds, until) {
        (Some(_), Some(_)) => {
            return Err(path.refuse("backoff_until", "cannot be combined with backoff_s; send one of them"));
        }
        (Some(seconds), None) => {
            let seconds = path.between("backoff_s", seconds, 0.0, WAIT_MAX_S as f64)?;
            Some(ChosenBackoff::ForMs((seconds * 1_000.0).ceil() as i64))
        }
        (None, Some(until)) => {
            let until = Time::from_micros(until.as_microsecond());
            if until > now.plus_s(WAIT_MAX_S) {
                return Err(path.refuse("backoff_until", "must be within ten years"));
            }
            Some(ChosenBackoff::Until(until))
        }
        (None, None) => None,
    })
}

fn wake_of(path: FieldPath, wake: Option<WakeRequest>) -> Result<Wake, ApiError> {
    let WakeRequest { any, all, count, of } =
        wake.ok_or_else(|| path.refuse("wake", "is missing: say what wakes the job"))?;
    let (member, keys, count) = match (any, all, count, of) {
        (Some(keys), None, None, None) => ("wake.any", keys, Some(1)),
        (None, Some(keys), None, None) => ("wake.all", keys, None),
        (None, None, Some(count), Some(keys)) => ("wake.of", keys, Some(count)),
        _ => return Err(path.refuse("wake", "must have any, all, or count and of")),
    };
    path.at_most(member, keys.len(), WAKE_KEYS, "keys")?;
    if keys.is_empty() {
        return Err(path.refuse(member, "must have at least one key"));
    }
    let mut keys = keys.iter().map(|key| path.label(member, key)).collect::<Result<Vec<_>, _>>()?;
    keys.sort();
    keys.dedup();
    let count = path.between("wake.count", count.unwrap_or(keys.len() as i64), 1, keys.len() as i64)?;
    Ok(Wake { keys, count })
}

fn checked_result(path: FieldPath, result: Box<RawValue>) -> Result<Box<str>, ApiError> {
    checked(path, "result", result)
}

fn checked(path: FieldPath, member: &str, result: Box<RawValue>) -> Result<Box<str>, ApiError> {
    let result: Box<str> = result.into();
    if result.len() > RESULT_BYTES {
        let detail = "store larger results as an artifact";
        let length = result.len();
        return Err(path.refuse(member, format_args!("may have at most {RESULT_BYTES} bytes, not {length}; {detail}")));
    }
    Ok(result)
}

/// Truncates a message that is too long, so that a long stack trace does not cost the worker its outcome.
pub(crate) fn job_error(path: FieldPath, error: Option<wire::JobError>) -> Result<JobError, ApiError> {
    let wire::JobError { code, mut message, retryable } =
        error.ok_or_else(|| path.refuse("error", "is missing: describe the failure"))?;
    if code.is_empty() || code.len() > ERROR_CODE_BYTES || code.chars().any(char::is_control) {
        let detail = format_args!("must have 1 to {ERROR_CODE_BYTES} bytes without control characters");
        return Err(path.refuse("error.code", detail));
    }
    message.truncate(message.floor_char_boundary(ERROR_MESSAGE_BYTES));
    Ok(JobError { code, message, retryable })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_error_message_is_truncated_at_a_character_boundary() {
        let message = "ä".repeat(ERROR_MESSAGE_BYTES);
        let error = wire::JobError { code: "boom".into(), message, retryable: true };
        let error = job_error(FieldPath::Body, Some(error)).ok().map(|error| error.message.len());
        assert_eq!(error, Some(ERROR_MESSAGE_BYTES));
    }
}
