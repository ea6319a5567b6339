//! Views of subjects, processes and the timeline.

use domain::{Condition, FactValue, Group, Selector, Test, Time};
use serde_json::{Map, Value};
use store::StoreError;
use store::fleet::backoffs::StoredBackoff;
use store::fleet::processes::eligible::EligibleSubject;
use store::fleet::processes::get::Process;
use store::fleet::subjects::facts::FactEntry;
use store::fleet::subjects::get::{LiveWork, ProcessEligibility, Subject, SubjectCard};
use store::fleet::timeline::list::TimelineItem;
use wire::{BackoffView, EligibleView, FactView, ProcessView, StandingView, SubjectView, WorkView};

use super::{raw, reads_messages, retry, time};
use crate::access::auth::Principal;

/// Later than any backoff with an end.
const ENDLESS: Time = Time::from_seconds(253_402_300_799);

pub(crate) fn subject(subject: Subject, principal: &Principal) -> Result<SubjectView, StoreError> {
    let fact = |fact: FactEntry| Ok((fact.name, FactView { value: raw(fact.value)?, at: time(fact.at) }));
    Ok(SubjectView {
        id: subject.id,
        kind: subject.kind,
        facts: subject.facts.into_iter().map(fact).collect::<Result<_, StoreError>>()?,
        backoffs: subject.backoffs.into_iter().map(|one| backoff(one, principal)).collect(),
        created_at: time(subject.created_at),
        updated_at: time(subject.updated_at),
        work: None,
        processes: None,
    })
}

pub(crate) fn card(card: SubjectCard, principal: &Principal, now: Time) -> Result<SubjectView, StoreError> {
    Ok(SubjectView {
        work: Some(card.work.into_iter().map(work).collect()),
        processes: Some(card.eligibility.into_iter().map(|one| standing(one, now)).collect()),
        ..subject(card.subject, principal)?
    })
}

pub(crate) fn backoff(stored: StoredBackoff, principal: &Principal) -> BackoffView {
    let cause = match reads_messages(principal) {
        true => stored.backoff.cause.clone(),
        false => stored.backoff.public_cause().to_owned(),
    };
    BackoffView {
        process: stored.process,
        until: stored.backoff.until.map(time),
        cause,
        by: stored.backoff.by,
        at: time(stored.backoff.at),
        job_id: stored.job,
    }
}

fn work(work: LiveWork) -> WorkView {
    WorkView {
        job_id: work.job.uuid(),
        process: work.process,
        state: work.state,
        worker: work.worker.map(|worker| worker.uuid()),
        started_at: work.started_at.map(time),
    }
}

fn standing(standing: ProcessEligibility, now: Time) -> StandingView {
    let state = match (standing.job, standing.since, standing.ready_at) {
        (Some(_), _, _) => "active",
        (None, None, _) => "ineligible",
        (None, Some(_), Some(ready_at)) if ready_at > now => {
            if standing.paced {
                "waiting"
            } else {
                "in_backoff"
            }
        }
        _ => "eligible",
    };
    StandingView {
        process: standing.process,
        standing: state.into(),
        since: standing.since.map(time),
        ready_at: standing.ready_at.filter(|at| *at < ENDLESS).map(time),
        check_at: standing.check_at.map(time),
        job_id: standing.job.map(|job| job.uuid()),
    }
}

/// Builds a timeline item with the rights of this caller.
pub(crate) fn timeline_item_for(item: TimelineItem, principal: &Principal) -> Result<wire::TimelineItem, StoreError> {
    if reads_messages(principal) { whole_item(item) } else { timeline_item(item) }
}

/// Builds a timeline item for callers that may not read error messages: the error code stays.
fn timeline_item(mut item: TimelineItem) -> Result<wire::TimelineItem, StoreError> {
    // The detail of a runtime operation contains no job error, and is in the operation log as well.
    if item.runtime.is_none() && item.cause.is_some() {
        item.detail = item.detail.and_then(without_message);
        if item.event == "backed_off" {
            let code = item.cause.as_deref().and_then(|cause| Some(cause.split_once(": ")?.0.to_owned()));
            item.cause = code.or(item.cause);
        }
    }
    whole_item(item)
}

fn without_message(detail: String) -> Option<String> {
    let Ok(mut members) = serde_json::from_str::<Map<String, Value>>(&detail) else { return Some(detail) };
    match members.remove("message") {
        None => Some(detail),
        Some(_) => (!members.is_empty()).then(|| Value::Object(members).to_string()),
    }
}

fn whole_item(item: TimelineItem) -> Result<wire::TimelineItem, StoreError> {
    Ok(wire::TimelineItem {
        event: item.event,
        at: time(item.at),
        subject: item.subject,
        runtime: item.runtime,
        process: item.process,
        job_id: item.job.map(|job| job.uuid()),
        attempt: item.attempt.map(i64::from),
        worker: item.worker.map(|worker| worker.uuid()),
        actor: item.actor,
        cause: item.cause,
        detail: item.detail.map(|detail| raw(detail_for_people(detail))).transpose()?,
    })
}

/// Replaces timestamps in microseconds, as stored, by RFC 3339.
fn detail_for_people(detail: String) -> String {
    if !detail.contains("until_us") {
        return detail;
    }
    let Ok(mut members) = serde_json::from_str::<Map<String, Value>>(&detail) else { return detail };
    if let Some(until) = members.remove("until_us") {
        let until = until.as_i64().map(|micros| time(Time::from_micros(micros)).to_string());
        members.insert("until".into(), until.map_or(Value::Null, Value::String));
    }
    Value::Object(members).to_string()
}

pub(crate) fn process(process: Process) -> Result<ProcessView, StoreError> {
    let settings = process.settings;
    Ok(ProcessView {
        name: process.name.to_string(),
        every_s: settings.every_s(),
        selector: selector(settings.selector)?,
        queue: settings.queue.to_string(),
        kind: settings.kind.to_string(),
        payload: settings.payload.map(|payload| raw(payload.into())).transpose()?,
        max_active: settings.max_active.map(i64::from),
        excludes: settings.excludes.iter().map(ToString::to_string).collect(),
        backoff: settings.backoff.map(retry),
        eligible: process.counts.eligible,
        active: process.counts.active,
        in_backoff: process.counts.in_backoff,
        oldest: process.counts.oldest.map(time),
        principal: process.principal,
        created_at: time(process.created_at),
        updated_at: time(process.updated_at),
    })
}

fn selector(selector: Selector) -> Result<wire::Selector, StoreError> {
    Ok(wire::Selector {
        kind: selector.kind.map(|kind| kind.to_string()),
        all: conditions(selector.all)?,
        any: conditions(selector.any)?,
        not: conditions(selector.not)?,
    })
}

fn conditions(conditions: Vec<Condition>) -> Result<Option<Vec<wire::Condition>>, StoreError> {
    let conditions = conditions.into_iter().map(condition).collect::<Result<Vec<_>, StoreError>>()?;
    Ok((!conditions.is_empty()).then_some(conditions))
}

fn condition(condition: Condition) -> Result<wire::Condition, StoreError> {
    let (fact, test) = match condition {
        Condition::Fact { fact, test } => (fact, test),
        Condition::Group(Group { all, any, not }) => {
            let (all, any, not) = (conditions(all)?, conditions(any)?, conditions(not)?);
            return Ok(wire::Condition { all, any, not, ..wire::Condition::default() });
        }
    };
    let of = wire::Condition { fact: Some(fact.to_string()), ..wire::Condition::default() };
    Ok(match test {
        Test::Exists(wanted) => wire::Condition { exists: Some(wanted), ..of },
        Test::Equals(FactValue(value)) => wire::Condition { equals: Some(raw(value)?), ..of },
        Test::EqualsFact(other) => wire::Condition { equals_fact: Some(other.to_string()), ..of },
        Test::DiffersFrom(other) => wire::Condition { differs_from: Some(other.to_string()), ..of },
        Test::GreaterThan(FactValue(value)) => wire::Condition { greater_than: Some(raw(value)?), ..of },
        Test::LessThan(FactValue(value)) => wire::Condition { less_than: Some(raw(value)?), ..of },
        Test::OlderThan { seconds } => wire::Condition { older_than_s: Some(seconds), ..of },
    })
}

pub(crate) fn eligible(eligible: EligibleSubject) -> EligibleView {
    EligibleView { subject: eligible.subject, since: time(eligible.since), ready_at: time(eligible.ready_at) }
}
