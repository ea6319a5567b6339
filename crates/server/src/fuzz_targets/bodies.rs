//! Fuzz targets for JSON bodies of every route, for runtime specs and for process selectors.

use std::collections::BTreeMap;

use domain::limits::{JSON_DEPTH, PAYLOAD_BYTES};
use domain::runtimes::{ImageRef, RuntimeNetwork, RuntimeSpec, VolumePath};
use domain::{Fact, FactValue, SubjectFacts, Time};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use store::db::canonical_json::canonical_json;
use store::fleet::subjects::facts::canonical;
use wire::RawValue;

use super::{accepted, first_line};
use crate::json;
use crate::validate::FieldPath;
use crate::validate::access::token;
use crate::validate::fleet::subject;
use crate::validate::queue::job::JobBuilder;
use crate::validate::queue::{job, outcome, settings, worker};
use crate::validate::signals::{signal, signature, ttfs};
use crate::validate::triggers::dead_letter;

const NOW: Time = Time::from_seconds(1_800_000_000);

/// Parses the input as the body of every route. An error must be a client error, an accepted value must survive a round
/// trip, and every member must pass validation or be refused by name.
pub fn body(data: &[u8]) {
    any(data);
    jobs(data);
    if let Some(request) = read::<wire::WorkerRequest>(data) {
        accepted(worker::new_worker(request));
    }
    if let Some(request) = read::<wire::ClaimRequest>(data) {
        assert!(accepted(worker::max(request.max)).is_none_or(|max| max > 0));
        accepted(worker::wait(request.wait_s));
    }
    if let Some(request) = read::<wire::SettleRequest>(data) {
        accepted(outcome::outcomes(request, NOW));
    }
    if let Some(request) = read::<wire::QueueSettings>(data) {
        accepted(settings::settings(request));
    }
    if let Some(request) = read::<wire::SubjectRequest>(data) {
        accepted(subject::kind(request.kind.as_deref()));
    }
    if let Some(request) = read::<wire::BackoffRequest>(data) {
        accepted(subject::until(&request, NOW));
    }
    if let Some(request) = read::<wire::ProcessRequest>(data) {
        accepted(subject::settings(request));
    }
    if let Some(request) = read::<wire::SignalUpdate>(data) {
        accepted(signal::change(request));
    }
    if let Some(request) = read::<wire::SignatureRequest>(data) {
        accepted(signature::new(request, "tester".into()));
    }
    if let Some(request) = read::<wire::SignatureUpdate>(data) {
        accepted(signature::change(request, String::new()));
    }
    if let Some(request) = read::<wire::TokenRequest>(data) {
        accepted(token::new_token(request, NOW));
    }
    if let Some(request) = read::<wire::TtfsEvents>(data) {
        accepted(ttfs::events(request, NOW));
    }
    if let Some(request) = read::<wire::DeadLetterFilter>(data) {
        accepted(dead_letter::filter(request));
    }
    read::<wire::FactsReport>(data);
    read::<wire::FireRequest>(data);
    read::<wire::HeartbeatRequest>(data);
    read::<wire::MatchRequest>(data);
    read::<wire::MergeRequest>(data);
    read::<wire::OperationRequest>(data);
    read::<wire::PauseRequest>(data);
    read::<wire::PoolRequest>(data);
    read::<wire::ReplayFailures>(data);
    read::<wire::ReplayManyRequest>(data);
    read::<wire::ReplayRequest>(data);
    read::<wire::ResolveRequest>(data);
    read::<wire::RetryRequest>(data);
    read::<wire::TriggerRequest>(data);
}

fn jobs(data: &[u8]) {
    let builder =
        JobBuilder { principal: "tester".into(), payload_bytes: PAYLOAD_BYTES, now: NOW, depth: 0, traceparent: None };
    if let Some(request) = read::<wire::JobRequest>(data) {
        let payload = request.payload.as_ref().map_or("null", |payload| payload.get()).to_owned();
        if let Some(job) = accepted(builder.single(request.clone())) {
            assert_eq!(*job.payload, *payload, "a payload is stored unchanged");
        }
        accepted(builder.call(request.clone()));
        accepted(builder.template("target.job", request));
    }
    if let Some(request) = read::<wire::BatchRequest>(data) {
        let count = request.jobs.len();
        if let Some(jobs) = accepted(builder.batch(request)) {
            assert_eq!(jobs.len(), count);
        }
    }
    if let Some(request) = read::<wire::CancelByKey>(data) {
        accepted(job::queue_and_key(&request));
    }
}

fn read<T: DeserializeOwned + Serialize>(data: &[u8]) -> Option<T> {
    let value = accepted(json::parse::<T>(data))?;
    let text = to_json(&value);
    let again: T = accepted(json::parse(text.as_bytes())).unwrap_or_else(|| panic!("{text} is refused"));
    assert_eq!(to_json(&again), text);
    Some(value)
}

fn to_json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("plain data has a JSON form")
}

/// Any JSON value: nesting within the limit, and a stable canonical form.
fn any(data: &[u8]) {
    let Some(text) = accepted(json::any(data)) else { return };
    let compact = canonical_json(&text);
    assert_eq!(canonical_json(std::str::from_utf8(&compact).expect("still UTF-8")), compact);
    // A number too large for a machine type is still valid JSON.
    let Ok(value) = serde_json::from_str::<Value>(&text) else { return };
    assert_eq!(serde_json::from_slice::<Value>(&compact).expect("still JSON"), value);
    assert!(depth(&value) <= JSON_DEPTH);
    if let Some(form) = canonical(&text) {
        assert_eq!(canonical(&form), Some(form), "the canonical form is idempotent");
    }
}

fn depth(value: &Value) -> usize {
    let deepest = match value {
        Value::Array(items) => items.iter().map(depth).max(),
        Value::Object(members) => members.values().map(depth).max(),
        _ => return 0,
    };
    1 + deepest.unwrap_or(0)
}

/// A container spec. An accepted one keeps its volumes below its own folder and stays off the host's network.
pub fn runtime(data: &[u8]) {
    let Some(request) = read::<wire::RuntimeRequest>(data) else { return };
    let Some(spec) = accepted(crate::validate::runtimes::runtime::spec(request, None)) else { return };
    let RuntimeSpec { image, volumes, network, ports, probe, .. } = &spec;
    assert_eq!(ImageRef::new(image.as_str()).as_ref(), Ok(image));
    assert_eq!(RuntimeNetwork::parse(network.as_str()).as_ref(), Ok(network));
    assert!(!["host", "default"].contains(&network.as_str()) && !network.as_str().contains(':'));
    for volume in volumes {
        assert_eq!(VolumePath::parse(&volume.target()).as_ref(), Ok(volume));
        let plain = |part: &str| !["", ".", ".."].contains(&part) && !part.contains(['/', '\\', ':', '\0']);
        assert!(volume.parts().all(plain), "{volume:?}");
    }
    let published = |port: u16| ports.iter().any(|published| published.container == port);
    assert!(ports.iter().all(|port| port.container > 0 && port.host != Some(0)));
    assert!(probe.as_ref().is_none_or(|probe| probe.path.starts_with('/') && published(probe.port)));
}

/// Input: a selector, then a line of facts, each reported one minute before the previous one. If a verdict announces a
/// change, it must change exactly then and not a microsecond earlier. Otherwise it must never change.
pub fn selector(data: &[u8]) {
    let (selector, facts) = first_line(data);
    let Some(selector) = read::<wire::Selector>(selector).and_then(|selector| accepted(subject::selector(selector)))
    else {
        return;
    };
    let facts: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(facts).unwrap_or_default();
    let Some(facts) = accepted(subject::facts(FieldPath::Body, facts)) else { return };
    let fact = |(number, (name, value)): (usize, (_, Option<Box<str>>))| {
        let value = FactValue(canonical(&value?).expect("it was validated"));
        Some((name, Fact { value, at: NOW.plus_s(-60 * number as i64) }))
    };
    let facts: SubjectFacts = facts.into_iter().enumerate().filter_map(fact).collect();
    let kind = selector.kind.as_ref().map(|kind| kind.to_string());
    let evaluate = |at: Time| selector.evaluate(kind.as_deref(), &facts, at);
    let verdict = evaluate(NOW);
    match verdict.changes_at {
        Some(at) => {
            assert!(at > NOW);
            assert_eq!(evaluate(Time::from_micros(at.micros() - 1)).eligible, verdict.eligible);
            assert_ne!(evaluate(at).eligible, verdict.eligible);
        }
        None => assert_eq!(evaluate(Time::from_micros(i64::MAX)).eligible, verdict.eligible),
    }
}
