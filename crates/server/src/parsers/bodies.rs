//! JSON bodies: of every route, of runtimes, and of the selectors of processes.

use std::collections::BTreeMap;

use domain::limits::{JSON_DEPTH, PAYLOAD_BYTES};
use domain::runtime::{ImageRef, Network, RuntimeSpec, VolumePath};
use domain::{Fact, FactValue, Facts, Time};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use store::one_form::one_form;
use store::subjects::facts::canonical;
use wire::RawValue;

use super::{first_line, told};
use crate::json;
use crate::validate::job::Maker;
use crate::validate::{Place, dead_letter, job, outcome, queue, signal, signature, subject, token, ttfs, worker};

const NOW: Time = Time::from_seconds(1_800_000_000);

/// The same body at every route. What is refused is refused as the caller's mistake; what is taken says the same once it
/// was written and read again, and every member of it passes or is refused by name.
pub fn body(data: &[u8]) {
    any(data);
    jobs(data);
    if let Some(request) = read::<wire::WorkerRequest>(data) {
        told(worker::new_worker(request));
    }
    if let Some(request) = read::<wire::ClaimRequest>(data) {
        assert!(told(worker::max(request.max)).is_none_or(|max| max > 0));
        told(worker::wait(request.wait_s));
    }
    if let Some(request) = read::<wire::SettleRequest>(data) {
        told(outcome::outcomes(request));
    }
    if let Some(request) = read::<wire::QueueSettings>(data) {
        told(queue::settings(request));
    }
    if let Some(request) = read::<wire::SubjectRequest>(data) {
        told(subject::kind(request.kind.as_deref()));
    }
    if let Some(request) = read::<wire::BackoffRequest>(data) {
        told(subject::until(&request, NOW));
    }
    if let Some(request) = read::<wire::ProcessRequest>(data) {
        told(subject::settings(request));
    }
    if let Some(request) = read::<wire::SignalUpdate>(data) {
        told(signal::change(request));
    }
    if let Some(request) = read::<wire::SignatureRequest>(data) {
        told(signature::new(request, "somebody".into()));
    }
    if let Some(request) = read::<wire::SignatureUpdate>(data) {
        told(signature::change(request));
    }
    if let Some(request) = read::<wire::TokenRequest>(data) {
        told(token::new_token(request, NOW));
    }
    if let Some(request) = read::<wire::TtfsEvents>(data) {
        told(ttfs::events(request, NOW));
    }
    if let Some(request) = read::<wire::DeadLetterFilter>(data) {
        told(dead_letter::filter(request));
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
    let maker = Maker { principal: "somebody".into(), payload_bytes: PAYLOAD_BYTES, now: NOW, depth: 0 };
    if let Some(request) = read::<wire::JobRequest>(data) {
        let payload = request.payload.as_ref().map_or("null", |payload| payload.get()).to_owned();
        if let Some(job) = told(maker.one(request.clone())) {
            assert_eq!(*job.payload, *payload, "a payload is as it came");
        }
        told(maker.call(request.clone()));
        told(maker.template("target.job", request));
    }
    if let Some(request) = read::<wire::BatchRequest>(data) {
        let count = request.jobs.len();
        if let Some(jobs) = told(maker.batch(request)) {
            assert_eq!(jobs.len(), count);
        }
    }
    if let Some(request) = read::<wire::CancelByKey>(data) {
        told(job::queue_and_key(&request));
    }
}

fn read<T: DeserializeOwned + Serialize>(data: &[u8]) -> Option<T> {
    let value = told(json::parse::<T>(data))?;
    let text = written(&value);
    let again: T = told(json::parse(text.as_bytes())).unwrap_or_else(|| panic!("{text} is refused"));
    assert_eq!(written(&again), text);
    Some(value)
}

fn written<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("plain data has a JSON form")
}

/// JSON that is taken as it is: no deeper than allowed, and the same in its one form.
fn any(data: &[u8]) {
    let Some(text) = told(json::any(data)) else { return };
    let compact = one_form(&text);
    assert_eq!(one_form(std::str::from_utf8(&compact).expect("still UTF-8")), compact);
    // A number that no machine's fits is JSON all the same.
    let Ok(value) = serde_json::from_str::<Value>(&text) else { return };
    assert_eq!(serde_json::from_slice::<Value>(&compact).expect("still JSON"), value);
    assert!(depth(&value) <= JSON_DEPTH);
    if let Some(form) = canonical(&text) {
        assert_eq!(canonical(&form), Some(form), "equal values have one form");
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

/// The spec of a container: whatever is taken stays below its own folder and off the host's network.
pub fn runtime(data: &[u8]) {
    let Some(request) = read::<wire::RuntimeRequest>(data) else { return };
    let Some(spec) = told(crate::validate::runtime::spec(request, None)) else { return };
    let RuntimeSpec { image, volumes, network, ports, probe, .. } = &spec;
    assert_eq!(ImageRef::new(image.as_str()).as_ref(), Ok(image));
    assert_eq!(Network::parse(network.as_str()).as_ref(), Ok(network));
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

/// A selector and, on the next line, facts, each said a minute after the one before. When a verdict is said to change, it
/// does so then, and not a moment earlier; and else it never does.
pub fn selector(data: &[u8]) {
    let (selector, facts) = first_line(data);
    let Some(selector) = read::<wire::Selector>(selector).and_then(|selector| told(subject::selector(selector))) else {
        return;
    };
    let facts: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(facts).unwrap_or_default();
    let Some(facts) = told(subject::facts(Place::Body, facts)) else { return };
    let fact = |(number, (name, value)): (usize, (_, Option<Box<str>>))| {
        let value = FactValue(canonical(&value?).expect("it was looked at"));
        Some((name, Fact { value, at: NOW.plus_s(-60 * number as i64) }))
    };
    let facts: Facts = facts.into_iter().enumerate().filter_map(fact).collect();
    let kind = selector.kind.as_ref().map(|kind| kind.to_string());
    let judge = |at: Time| selector.judge(kind.as_deref(), &facts, at);
    let verdict = judge(NOW);
    match verdict.changes_at {
        Some(at) => {
            assert!(at > NOW);
            assert_eq!(judge(Time::from_micros(at.micros() - 1)).eligible, verdict.eligible);
            assert_ne!(judge(at).eligible, verdict.eligible);
        }
        None => assert_eq!(judge(Time::from_micros(i64::MAX)).eligible, verdict.eligible),
    }
}
