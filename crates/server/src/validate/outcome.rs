//! Outcomes of attempts. Each carries what its kind takes and nothing else.

use domain::limits::{ERROR_CODE_BYTES, ERROR_MESSAGE_BYTES, RESULT_BYTES, SETTLE_OUTCOMES, WAIT_S_MAX};
use domain::{Epoch, JobError, JobId};
use store::jobs::settle::{End, Outcome};
use wire::{OutcomeKind, OutcomeRequest, RawValue, SettleRequest};

use super::Place;
use crate::error::ApiError;

pub(crate) fn outcomes(request: SettleRequest) -> Result<Vec<Outcome>, ApiError> {
    Place::Body.at_most("outcomes", request.outcomes.len(), SETTLE_OUTCOMES, "outcomes")?;
    let outcomes = request.outcomes.into_iter().enumerate();
    outcomes.map(|(number, request)| outcome(Place::Item { of: "outcomes", number }, request)).collect()
}

fn outcome(place: Place, request: OutcomeRequest) -> Result<Outcome, ApiError> {
    let OutcomeRequest { job_id, epoch, outcome, result, facts, error, delay_s } = request;
    let (wants_result, wants_error, wants_delay) =
        (outcome == OutcomeKind::Finish, outcome == OutcomeKind::Fail, outcome == OutcomeKind::Snooze);
    let given = [
        ("result", result.is_some() && !wants_result, "finish"),
        ("facts", facts.is_some() && !wants_result, "finish"),
        ("error", error.is_some() && !wants_error, "fail"),
        ("delay_s", delay_s.is_some() && !wants_delay, "snooze"),
    ];
    if let Some((member, _, takes)) = given.into_iter().find(|(_, stray, _)| *stray) {
        return Err(place.refuse(member, format_args!("goes with the outcome {takes} only")));
    }
    let end = match outcome {
        OutcomeKind::Finish => {
            let result = result.map(|result| checked_result(place, result)).transpose()?;
            match facts.map(|facts| super::subject::facts(place, facts)).transpose()? {
                Some(facts) => End::FinishWith { result, facts },
                None => End::Finish(result),
            }
        }
        OutcomeKind::Fail => End::Fail(job_error(place, error)?),
        OutcomeKind::Cancel => End::Cancel,
        OutcomeKind::Snooze => {
            let delay_s = delay_s.ok_or_else(|| place.refuse("delay_s", "is missing: say for how long to snooze"))?;
            let delay_s = place.between("delay_s", delay_s, 0.0, WAIT_S_MAX as f64)?;
            End::Snooze { delay_ms: (delay_s * 1_000.0).ceil() as i64 }
        }
        OutcomeKind::Release => End::Release,
    };
    Ok(Outcome { job: JobId::new(job_id), epoch: Epoch(epoch), end })
}

fn checked_result(place: Place, result: Box<RawValue>) -> Result<Box<str>, ApiError> {
    let result: Box<str> = result.into();
    if result.len() > RESULT_BYTES {
        let detail = "keep what is larger as an artifact";
        let got = result.len();
        return Err(place.refuse("result", format_args!("may have at most {RESULT_BYTES} bytes, not {got}; {detail}")));
    }
    Ok(result)
}

/// A message that is too long is cut: a stack trace never costs a worker its outcome.
fn job_error(place: Place, error: Option<wire::JobError>) -> Result<JobError, ApiError> {
    let wire::JobError { code, mut message, retryable } =
        error.ok_or_else(|| place.refuse("error", "is missing: say what failed"))?;
    if code.is_empty() || code.len() > ERROR_CODE_BYTES || code.chars().any(char::is_control) {
        let detail = format_args!("must have 1 to {ERROR_CODE_BYTES} bytes without control characters");
        return Err(place.refuse("error.code", detail));
    }
    message.truncate(message.floor_char_boundary(ERROR_MESSAGE_BYTES));
    Ok(JobError { code, message, retryable })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_is_cut_at_a_character() {
        let message = "ä".repeat(ERROR_MESSAGE_BYTES);
        let error = wire::JobError { code: "boom".into(), message, retryable: true };
        let error = job_error(Place::Body, Some(error)).ok().map(|error| error.message.len());
        assert_eq!(error, Some(ERROR_MESSAGE_BYTES));
    }
}
