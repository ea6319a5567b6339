//! Validation of subjects, facts, backoffs and processes.

use std::collections::BTreeMap;

use domain::fleet::backoff::EVERY_PROCESS;
use domain::limits::{
    CONCURRENCY_MAX, FACT_BYTES, PAYLOAD_BYTES, PROCESS_EXCLUDES, REASON_BYTES, SELECTOR_CONDITIONS, SELECTOR_DEPTH,
    SUBJECT_FACTS, WAIT_MAX_S,
};
use domain::{Condition, FactValue, Group, Label, Name, ProcessSettings, Selector, Test, Time};
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
    let Group { all, any, not } = group("selector", [selector.all, selector.any, selector.not])?;
    let kind = FieldPath::Body.optional_name("selector.kind", selector.kind.as_deref())?;
    let selector = Selector { kind, all, any, not };
    FieldPath::Body.at_most("selector", selector.conditions(), SELECTOR_CONDITIONS, "conditions")?;
    if !selector.is_within_depth() {
        let detail = format_args!("may nest groups at most {SELECTOR_DEPTH} levels deep");
        return Err(FieldPath::Body.refuse("selector", detail));
    }
    Ok(selector)
}

/// Validates the members `all`, `any` and `not` of a selector or of a group. The JSON parser limits the recursion.
fn group(of: &str, members: [Option<Vec<wire::Condition>>; 3]) -> Result<Group, ApiError> {
    let [all, any, not] = members;
    let conditions = |member: &str, conditions: Option<Vec<wire::Condition>>| {
        let conditions = conditions.unwrap_or_default();
        FieldPath::Body.at_most(&format!("{of}.{member}"), conditions.len(), SELECTOR_CONDITIONS, "conditions")?;
        let numbered = conditions.into_iter().enumerate();
        numbered.map(|(number, one)| condition(&format!("{of}.{member}[{number}]"), one)).collect::<Result<Vec<_>, _>>()
    };
    Ok(Group { all: conditions("all", all)?, any: conditions("any", any)?, not: conditions("not", not)? })
}

const ONE_TEST: &str =
    "must have exactly one of exists, equals, equals_fact, differs_from, greater_than, less_than and older_than_s";

fn condition(member: &str, condition: wire::Condition) -> Result<Condition, ApiError> {
    let path = FieldPath::Body;
    let wire::Condition {
        fact,
        exists,
        equals,
        equals_fact,
        differs_from,
        greater_than,
        less_than,
        older_than_s,
        all,
        any,
        not,
    } = condition;
    let value = |name: &str, value: Box<RawValue>| {
        let too_large = || path.refuse(format_args!("{member}.{name}"), "contains a number that is too large");
        canonical(value.get()).map(FactValue).ok_or_else(too_large)
    };
    let bound =
        |name: &str, bound: Box<RawValue>| match value(name, bound)? {
            bound if bound.has_order() => Ok(bound),
            _ => Err(path
                .refuse(format_args!("{member}.{name}"), "must be a number, or a time such as 2026-11-19T14:00:00Z")),
        };
    let other = |name: &str, other: String| path.name(&format!("{member}.{name}"), &other);
    let age = |seconds| path.between(&format!("{member}.older_than_s"), seconds, 0, WAIT_MAX_S);
    let tests = [
        exists.map(|wanted| Ok(Test::Exists(wanted))),
        equals.map(|wanted| value("equals", wanted).map(Test::Equals)),
        equals_fact.map(|fact| other("equals_fact", fact).map(Test::EqualsFact)),
        differs_from.map(|fact| other("differs_from", fact).map(Test::DiffersFrom)),
        greater_than.map(|than| bound("greater_than", than).map(Test::GreaterThan)),
        less_than.map(|than| bound("less_than", than).map(Test::LessThan)),
        older_than_s.map(|seconds| age(seconds).map(|seconds| Test::OlderThan { seconds })),
    ];
    let mut tests = tests.into_iter().flatten();
    let is_group = [&all, &any, &not].into_iter().any(Option::is_some);
    match (fact, is_group) {
        (Some(fact), false) => match (tests.next(), tests.next()) {
            (Some(test), None) => {
                Ok(Condition::Fact { fact: path.name(&format!("{member}.fact"), &fact)?, test: test? })
            }
            _ => Err(path.refuse(member, ONE_TEST)),
        },
        (None, true) if tests.next().is_none() => group(member, [all, any, not]).map(Condition::Group),
        _ => Err(path.refuse(member, "must be a fact with one test, or a group with all, any or not")),
    }
}

pub(crate) fn subject(text: &str) -> Result<Label, ApiError> {
    Label::new(text).map_err(|error| ApiError::invalid_field("id", error))
}
