//! Subjects, facts, backoffs and processes.

use std::collections::BTreeMap;

use domain::backoff::EVERY_PROCESS;
use domain::limits::{
    CONCURRENCY_MAX, FACT_BYTES, PAYLOAD_BYTES, PROCESS_EXCLUDES, REASON_BYTES, SELECTOR_CONDITIONS, SUBJECT_FACTS,
    WAIT_S_MAX,
};
use domain::{Condition, FactValue, Label, Name, ProcessSettings, Selector, Test, Time};
use store::backoffs::by_hand::Until;
use store::subjects::facts::{FactChanges, canonical};
use wire::{BackoffRequest, ProcessRequest, RawValue};

use super::Place;
use crate::error::ApiError;

pub(crate) fn kind(kind: Option<&str>) -> Result<Option<Name>, ApiError> {
    Place::Body.opt_name("kind", kind)
}

pub(crate) fn facts(place: Place, facts: BTreeMap<String, Box<RawValue>>) -> Result<FactChanges, ApiError> {
    place.at_most("facts", facts.len(), SUBJECT_FACTS, "facts")?;
    let fact = |(name, value): (String, Box<RawValue>)| {
        let member = format!("facts.{name}");
        let name = place.name(&member, &name)?;
        let value: Box<str> = value.into();
        if value.len() > FACT_BYTES {
            let got = value.len();
            return Err(place.refuse(member, format_args!("may have at most {FACT_BYTES} bytes; it has {got}")));
        }
        if canonical(&value).is_none() {
            return Err(place.refuse(member, "holds a number that is too large to compute with"));
        }
        Ok((name, Some(value).filter(|value| &**value != "null")))
    };
    facts.into_iter().map(fact).collect()
}

/// The process in the path: a name, or `*`.
pub(crate) fn process(text: &str) -> Result<String, ApiError> {
    if text == EVERY_PROCESS {
        return Ok(text.into());
    }
    Name::new(text).map(|name| name.to_string()).map_err(|error| ApiError::invalid_field("process", error))
}

pub(crate) fn until(request: &BackoffRequest, now: Time) -> Result<Until, ApiError> {
    let place = Place::Body;
    match (request.until, request.for_s) {
        (Some(_), Some(_)) => Err(place.refuse("for_s", "cannot go with until; keep one of the two")),
        (None, None) => Ok(Until::Forever),
        (None, Some(seconds)) => Ok(Until::Seconds(place.between("for_s", seconds, 1, WAIT_S_MAX)?)),
        (Some(until), None) => {
            let until = Time::from_micros(until.as_microsecond());
            if until > now.plus_s(WAIT_S_MAX) {
                return Err(place.refuse("until", "must be within ten years; leave it out for a lockout without end"));
            }
            Ok(Until::Time(until))
        }
    }
}

pub(crate) fn cause(cause: String) -> Result<String, ApiError> {
    let cause = Place::Body.words("cause", cause, REASON_BYTES)?;
    match cause.trim().is_empty() {
        true => Err(Place::Body.refuse("cause", "must say why")),
        false => Ok(cause),
    }
}

pub(crate) fn settings(request: ProcessRequest) -> Result<ProcessSettings, ApiError> {
    let place = Place::Body;
    let excludes = request.excludes.unwrap_or_default();
    place.at_most("excludes", excludes.len(), PROCESS_EXCLUDES, "processes")?;
    let excluded = |(number, name): (usize, &String)| place.name(&format!("excludes[{number}]"), name);
    let max_active = request.max_active.map(|most| place.between("max_active", most, 1, CONCURRENCY_MAX));
    Ok(ProcessSettings {
        selector: selector(request.selector)?,
        queue: place.queue("queue", &request.queue)?,
        kind: place.name("kind", &request.kind)?,
        payload: request.payload.map(|payload| checked_payload(payload.into())).transpose()?,
        max_active: max_active.transpose()?.map(|most| most as u32),
        every_s: request.every_s.map(|seconds| place.between("every_s", seconds, 1, WAIT_S_MAX)).transpose()?,
        excludes: excludes.iter().enumerate().map(excluded).collect::<Result<_, _>>()?,
        backoff: request.backoff.map(|backoff| place.retry("backoff", backoff)).transpose()?,
    })
}

fn checked_payload(payload: Box<str>) -> Result<Box<str>, ApiError> {
    match payload.len() {
        got if got > PAYLOAD_BYTES => {
            let detail = format_args!("may have at most {PAYLOAD_BYTES} bytes of JSON; it has {got}");
            Err(Place::Body.refuse("payload", detail))
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
        kind: Place::Body.opt_name("selector.kind", selector.kind.as_deref())?,
        all: conditions("all", selector.all)?,
        any: conditions("any", selector.any)?,
        not: conditions("not", selector.not)?,
    };
    Place::Body.at_most("selector", selector.conditions(), SELECTOR_CONDITIONS, "conditions")?;
    Ok(selector)
}

fn condition(member: &str, condition: wire::Condition) -> Result<Condition, ApiError> {
    let place = Place::Body;
    let wire::Condition { fact, exists, equals, older_than_s } = condition;
    let test = match (exists, equals, older_than_s) {
        (Some(wanted), None, None) => Test::Exists(wanted),
        (None, Some(value), None) => {
            let too_large = || place.refuse(format_args!("{member}.equals"), "holds a number that is too large");
            Test::Equals(FactValue(canonical(value.get()).ok_or_else(too_large)?))
        }
        (None, None, Some(seconds)) => {
            Test::OlderThan { seconds: place.between(&format!("{member}.older_than_s"), seconds, 0, WAIT_S_MAX)? }
        }
        _ => return Err(place.refuse(member, "must have exactly one of exists, equals and older_than_s")),
    };
    Ok(Condition { fact: place.name(&format!("{member}.fact"), &fact)?, test })
}

pub(crate) fn subject(text: &str) -> Result<Label, ApiError> {
    Label::new(text).map_err(|error| ApiError::invalid_field("id", error))
}
