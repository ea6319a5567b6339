//! Validation of subjects, facts, backoffs and processes.

use std::collections::BTreeMap;

use domain::fleet::backoff::EVERY_PROCESS;
use domain::limits::{
    CONCURRENCY_MAX, FACT_BYTES, PAYLOAD_BYTES, PROCESS_EXCLUDES, REASON_BYTES, SELECTOR_CONDITIONS, SUBJECT_FACTS,
    WAIT_MAX_S,
};
use domain::{Condition, FactValue, Label, Name, ProcessSettings, Selector, Test, Time};
use store::fleet::backoffs::lockout::Until;
use store::fleet::subjects::facts::{FactChanges, canonical};
use wire::{BackoffRequest, ProcessRequest, RawValue};

use crate::error::ApiError;
use crate::validate::FieldPath;

pub(crate) fn kind(kind: Option<&str>) -> Result<Option<Name>, ApiError> {
    FieldPath::Body.optional_name("kind", kind)
}

pub(crate) fn facts(path: FieldPath, facts: BTreeMap<String, Box<RawValue>>) -> Result<FactChanges, ApiError> {
    path.at_most("facts", facts.len(), SUBJECT_FACTS, "facts")?;
    let fact = |(name, value): (String, Box<RawValue>)| {
        let member = format!("facts.{name}");
        let name = path.name(&member, &name)?;
        let value: Box<str> = value.into();
        if value.len() > FACT_BYTES {
            let got = value.len();
            return Err(path.refuse(member, format_args!("may have at most {FACT_BYTES} bytes; it has {got}")));
        }
        if canonical(&value).is_none() {
            return Err(path.refuse(member, "contains a number that is too large"));
        }
        Ok((name, Some(value).filter(|value| &**value != "null")))
    };
    facts.into_iter().map(fact).collect()
}

/// Validates the process in a path: a name, or `*`.
pub(crate) fn process(text: &str) -> Result<String, ApiError> {
    if text == EVERY_PROCESS {
        return Ok(text.into());
    }
    Name::new(text).map(|name| name.to_string()).map_err(|error| ApiError::invalid_field("process", error))
}

pub(crate) fn until(request: &BackoffRequest, now: Time) -> Result<Until, ApiError> {
    let path = FieldPath::Body;
    match (request.until, request.for_s) {
        (Some(_), Some(_)) => Err(path.refuse("for_s", "cannot be combined with until; send one of them")),
        (None, None) => Ok(Until::Forever),
        (None, Some(seconds)) => Ok(Until::Seconds(path.between("for_s", seconds, 1, WAIT_MAX_S)?)),
        (Some(until), None) => {
            let until = Time::from_micros(until.as_microsecond());
            if until > now.plus_s(WAIT_MAX_S) {
                return Err(path.refuse("until", "must be within ten years; omit it for a backoff without end"));
            }
            Ok(Until::Time(until))
        }
    }
}

pub(crate) fn cause(cause: String) -> Result<String, ApiError> {
    let cause = FieldPath::Body.free_text("cause", cause, REASON_BYTES)?;
    match cause.trim().is_empty() {
        true => Err(FieldPath::Body.refuse("cause", "must not be empty; state a reason")),
        false => Ok(cause),
    }
}

pub(crate) fn settings(request: ProcessRequest) -> Result<ProcessSettings, ApiError> {
    let path = FieldPath::Body;
    let excludes = request.excludes.unwrap_or_default();
    path.at_most("excludes", excludes.len(), PROCESS_EXCLUDES, "processes")?;
    let excluded = |(number, name): (usize, &String)| path.name(&format!("excludes[{number}]"), name);
    let max_active = request.max_active.map(|most| path.between("max_active", most, 1, CONCURRENCY_MAX));
    Ok(ProcessSettings {
        selector: selector(request.selector)?,
        queue: path.queue("queue", &request.queue)?,
        kind: path.name("kind", &request.kind)?,
        payload: request.payload.map(|payload| checked_payload(payload.into())).transpose()?,
        max_active: max_active.transpose()?.map(|most| most as u32),
        every_s: request.every_s.map(|seconds| path.between("every_s", seconds, 1, WAIT_MAX_S)).transpose()?,
        excludes: excludes.iter().enumerate().map(excluded).collect::<Result<_, _>>()?,
        backoff: request.backoff.map(|backoff| path.retry("backoff", backoff)).transpose()?,
    })
}

fn checked_payload(payload: Box<str>) -> Result<Box<str>, ApiError> {
    match payload.len() {
        got if got > PAYLOAD_BYTES => {
            let detail = format_args!("may have at most {PAYLOAD_BYTES} bytes of JSON; it has {got}");
            Err(FieldPath::Body.refuse("payload", detail))
        }
        _ => Ok(payload),
    }
}

pub(crate) fn selector(selector: wire::Selector) -> Result<Selector, ApiError> {
    let conditions = |of: &str, conditions: Option<Vec<wire::Condition>>| {
        let conditions = conditions.unwrap_or_default().into_iter().enumerate();
        conditions
            .map(|(number, one)| condition(&format!("selector.{of}[{number}]"), one))
            .collect::<Result<Vec<_>, _>>()
    };
    let selector = Selector {
        kind: FieldPath::Body.optional_name("selector.kind", selector.kind.as_deref())?,
        all: conditions("all", selector.all)?,
        any: conditions("any", selector.any)?,
        not: conditions("not", selector.not)?,
    };
    FieldPath::Body.at_most("selector", selector.conditions(), SELECTOR_CONDITIONS, "conditions")?;
    Ok(selector)
}

fn condition(member: &str, condition: wire::Condition) -> Result<Condition, ApiError> {
    let path = FieldPath::Body;
    let wire::Condition { fact, exists, equals, older_than_s } = condition;
    let test = match (exists, equals, older_than_s) {
        (Some(wanted), None, None) => Test::Exists(wanted),
        (None, Some(value), None) => {
            let too_large = || path.refuse(format_args!("{member}.equals"), "contains a number that is too large");
            Test::Equals(FactValue(canonical(value.get()).ok_or_else(too_large)?))
        }
        (None, None, Some(seconds)) => {
            Test::OlderThan { seconds: path.between(&format!("{member}.older_than_s"), seconds, 0, WAIT_MAX_S)? }
        }
        _ => return Err(path.refuse(member, "must have exactly one of exists, equals and older_than_s")),
    };
    Ok(Condition { fact: path.name(&format!("{member}.fact"), &fact)?, test })
}

pub(crate) fn subject(text: &str) -> Result<Label, ApiError> {
    Label::new(text).map_err(|error| ApiError::invalid_field("id", error))
}
