//! Heads of requests, and what hooks bring.

use axum::extract::Query;
use axum::http::header::{COOKIE, HOST};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use domain::Time;
use domain::limits::{BATCH_EVENTS, LONG_POLL_S, PAGE_ITEMS};
use engine::outbound::{parse_url, sign};
use serde::de::{DeserializeOwned, IgnoredAny};

use super::{first_line, told};
use crate::host::{self, HostCheck};
use crate::http::sign_in;
use crate::session::{self, CookieKey};
use crate::validate::dead_letter::DeadLetterQuery;
use crate::validate::query::{self, JobQuery, PageQuery, SubjectQuery, WaitQuery};
use crate::{auth, cloudevent, depth, extract, signature};

/// Header fields, one in a line, then an empty line, then the body.
fn request(data: &[u8]) -> (HeaderMap, &[u8]) {
    let (mut headers, mut rest) = (HeaderMap::new(), data);
    while !rest.is_empty() {
        let (line, after) = first_line(rest);
        rest = after;
        if line.is_empty() {
            break;
        }
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let name = parts.next().and_then(|name| HeaderName::from_bytes(name).ok());
        let value = parts.next().and_then(|value| HeaderValue::from_bytes(value.trim_ascii()).ok());
        if let Some((name, value)) = name.zip(value) {
            headers.append(name, value);
        }
    }
    (headers, rest)
}

/// A target, then header fields. Bounds hold whatever is asked for; a host that counts as this machine is this machine; a
/// cookie that is taken is one that we signed; and signing in leads to our own pages.
pub fn head(data: &[u8]) {
    let (target, rest) = first_line(data);
    let (headers, _) = request(rest);
    let key = CookieKey::new(&[[7; 32]]);
    if let Some(secret) = key.read(&headers) {
        let ours = key.cookie(&secret);
        let ours = ours.to_str().expect("ASCII").split(';').next().expect("a value");
        let given = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        assert!(given.flat_map(|cookies| cookies.split(';')).any(|cookie| cookie.trim() == ours));
    }
    told(auth::bearer(&headers));
    told(extract::check_content_type(&headers));
    assert!(told(depth::of(&headers)).is_none_or(|depth| depth >= 0));
    let Ok(uri) = Uri::try_from(target) else { return };
    for method in [Method::GET, Method::POST] {
        told(session::check_browser(&method, &headers, None));
        if told(host::check(HostCheck::Loopback, &method, &uri, &headers)).is_some() {
            headers.get_all(HOST).iter().for_each(this_machine);
        }
    }
    queries(&uri);
    let next = uri.query().unwrap_or_default();
    let page = format!("https://windlass.example/a/.{}", sign_in::local(Some(next)));
    let page = parse_url(&page).expect("an address");
    assert_eq!(page.host_str(), Some("windlass.example"));
    assert!(!sign_in::local(Some(next)).starts_with("//"));
}

/// As a browser would read it.
fn this_machine(host: &HeaderValue) {
    let host = host.to_str().expect("it was read");
    let url = parse_url(&format!("http://{host}/")).unwrap_or_else(|error| panic!("{host}: {error}"));
    let name = url.host_str().expect("it has a host");
    assert!(name == "localhost" || name == "[::1]" || name.starts_with("127."), "{host} is {name}");
}

fn queries(uri: &Uri) {
    fn read<T: DeserializeOwned>(uri: &Uri) -> Option<T> {
        Query::<T>::try_from_uri(uri).ok().map(|Query(query)| query)
    }
    if let Some(query) = read::<JobQuery>(uri) {
        told(query.filter());
    }
    if let Some(query) = read::<SubjectQuery>(uri) {
        told(query.filter());
    }
    if let Some(query) = read::<DeadLetterQuery>(uri) {
        told(query.filter());
    }
    if let Some(limit) = read::<PageQuery>(uri).and_then(|page| told(query::limit(page.limit.as_deref()))) {
        assert!((1..=PAGE_ITEMS).contains(&limit));
    }
    if let Some(wait) = read::<WaitQuery>(uri).and_then(|wait| told(query::wait(wait.wait.as_deref()))) {
        assert!(wait.as_secs() <= LONG_POLL_S);
    }
}

const SECRET: &str = "whsec_MDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAw";

/// A hook's header fields and body: CloudEvents in all three forms, and signatures of Standard Webhooks.
pub fn hook(data: &[u8]) {
    let (headers, body) = request(data);
    if let Some(Some(events)) = told(cloudevent::read(&headers, body)) {
        assert!((1..=BATCH_EVENTS).contains(&events.len()));
        for event in &events {
            serde_json::from_str::<IgnoredAny>(&event.data).unwrap_or_else(|error| panic!("{}: {error}", event.data));
            let texts = [Some(&event.id), Some(&event.source), event.subject.as_ref(), event.time.as_ref()];
            assert!(texts.into_iter().flatten().all(|text| !text.chars().any(char::is_control)));
        }
        objects(&headers, body);
    }
    signatures(headers, body);
}

/// An event is an object: a list of its members in the right order is none.
fn objects(headers: &HeaderMap, body: &[u8]) {
    let kind = headers.get("content-type").map_or(&b""[..], HeaderValue::as_bytes).to_ascii_lowercase();
    let body = body.trim_ascii_start();
    if kind.starts_with(b"application/cloudevents+json") {
        assert!(body.starts_with(b"{"));
    } else if kind.starts_with(b"application/cloudevents-batch+json") {
        let events: Vec<serde_json::Value> = serde_json::from_slice(body).unwrap_or_default();
        assert!(events.iter().all(serde_json::Value::is_object));
    }
}

/// What is taken was signed with the secret; what is signed is taken, and nothing else in its place.
fn signatures(mut headers: HeaderMap, body: &[u8]) {
    let text =
        |headers: &HeaderMap, name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let id = text(&headers, "webhook-id").filter(|id| !id.is_empty() && id.len() <= 256).unwrap_or("msg_1".into());
    let at_s = text(&headers, "webhook-timestamp").and_then(|at| at.parse().ok()).unwrap_or(1_800_000_000);
    let now = Time::from_seconds(at_s);
    let verified = |headers: &HeaderMap, body: &[u8]| told(signature::verified(headers, body, SECRET, now));
    let words = String::from_utf8_lossy(body);
    let ours = sign::signature(&[SECRET.into()], &id, at_s, &words).expect("the secret signs");
    if verified(&headers, body).is_some() && body == words.as_bytes() {
        let as_written = text(&headers, "webhook-timestamp") == Some(at_s.to_string());
        let given = text(&headers, "webhook-signature").unwrap_or_default();
        assert!(!as_written || given.split(' ').any(|one| one == ours), "{given}");
    }
    for (name, value) in [("webhook-id", &id), ("webhook-timestamp", &at_s.to_string()), ("webhook-signature", &ours)] {
        headers.insert(name, HeaderValue::from_str(value).expect("it was read from a header, or is ours"));
    }
    assert_eq!(verified(&headers, words.as_bytes()), Some(id));
    assert_eq!(verified(&headers, format!("{words} ").as_bytes()), None);
}
