//! Fuzz targets for request heads, query strings and webhooks.

use axum::extract::Query;
use axum::http::header::{COOKIE, HOST};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use domain::Time;
use domain::limits::{BATCH_EVENTS, LONG_POLL_S, PAGE_ITEMS};
use engine::outbound::{parse_url, sign};
use serde::de::{DeserializeOwned, IgnoredAny};

use super::{accepted, first_line};
use crate::access::auth;
use crate::access::cross_site::OwnOrigin;
use crate::access::host;
use crate::access::host::HostCheck;
use crate::access::session::CookieKey;
use crate::extract;
use crate::http::sign_in;
use crate::triggers::{cloudevent, depth, hook_signature};
use crate::validate::query::{self, JobQuery, PageQuery, SubjectQuery, WaitQuery};
use crate::validate::triggers::dead_letter::DeadLetterQuery;

/// Input: header fields, one per line, then an empty line, then the body.
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

/// Input: a request target, then header fields. Limits must hold, a host accepted as loopback must be loopback, an
/// accepted cookie must carry a valid signature, and a sign-in redirect must stay on this origin.
pub fn head(data: &[u8]) {
    let (target, rest) = first_line(data);
    let (headers, _) = request(rest);
    let key = CookieKey::new(&[[7; 32]]);
    if let Some(secret) = key.read(&headers) {
        let expected = key.cookie(&secret);
        let expected = expected.to_str().expect("ASCII").split(';').next().expect("a value");
        let received = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        assert!(received.flat_map(|cookies| cookies.split(';')).any(|cookie| cookie.trim() == expected));
    }
    accepted(auth::bearer(&headers));
    accepted(extract::check_content_type(&headers));
    assert!(accepted(depth::of(&headers)).is_none_or(|depth| depth >= 0));
    let Ok(uri) = Uri::try_from(target) else { return };
    for method in [Method::GET, Method::POST] {
        accepted(OwnOrigin { has_tls: false, public: None }.check_with_cookie(&method, &uri, &headers));
    }
    if accepted(host::check(HostCheck::Loopback, &uri, &headers)).is_some() {
        headers.get_all(HOST).iter().for_each(assert_loopback);
    }
    queries(&uri);
    let next = uri.query().unwrap_or_default();
    let page = format!("https://windlass.example/a/.{}", sign_in::local(Some(next)));
    let page = parse_url(&page).expect("an address");
    assert_eq!(page.host_str(), Some("windlass.example"));
    assert!(!sign_in::local(Some(next)).starts_with("//"));
}

/// Parses the host as a browser does.
fn assert_loopback(host: &HeaderValue) {
    let host = host.to_str().expect("it was parsed");
    let url = parse_url(&format!("http://{host}/")).unwrap_or_else(|error| panic!("{host}: {error}"));
    let name = url.host_str().expect("it has a host");
    assert!(name == "localhost" || name == "[::1]" || name.starts_with("127."), "{host} is {name}");
}

fn queries(uri: &Uri) {
    fn read<T: DeserializeOwned>(uri: &Uri) -> Option<T> {
        Query::<T>::try_from_uri(uri).ok().map(|Query(query)| query)
    }
    if let Some(query) = read::<JobQuery>(uri) {
        accepted(query.filter());
    }
    if let Some(query) = read::<SubjectQuery>(uri) {
        accepted(query.filter());
    }
    if let Some(query) = read::<DeadLetterQuery>(uri) {
        accepted(query.filter());
    }
    if let Some(limit) = read::<PageQuery>(uri).and_then(|page| accepted(query::limit(page.limit.as_deref()))) {
        assert!((1..=PAGE_ITEMS).contains(&limit));
    }
    if let Some(wait) = read::<WaitQuery>(uri).and_then(|wait| accepted(query::wait(wait.wait.as_deref()))) {
        assert!(wait.as_secs() <= LONG_POLL_S);
    }
}

const SECRET: &str = "whsec_MDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAw";

/// Input: header fields and a body. CloudEvents in all three modes, and Standard Webhooks signatures.
pub fn hook(data: &[u8]) {
    let (headers, body) = request(data);
    if let Some(Some(events)) = accepted(cloudevent::read(&headers, body)) {
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

/// An event must be an object. An array of its members in the right order is not accepted.
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

/// An accepted message must be signed with the secret. A signed message must be accepted, a changed one refused.
fn signatures(mut headers: HeaderMap, body: &[u8]) {
    let text =
        |headers: &HeaderMap, name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let id = text(&headers, "webhook-id").filter(|id| !id.is_empty() && id.len() <= 256).unwrap_or("msg_1".into());
    let at_s = text(&headers, "webhook-timestamp").and_then(|at| at.parse().ok()).unwrap_or(1_800_000_000);
    let now = Time::from_seconds(at_s);
    let verified = |headers: &HeaderMap, body: &[u8]| accepted(hook_signature::verify(headers, body, SECRET, now));
    let message = String::from_utf8_lossy(body);
    let expected = sign::signature(&[SECRET.into()], &id, at_s, &message).expect("the secret signs");
    if verified(&headers, body).is_some() && body == message.as_bytes() {
        let as_written = text(&headers, "webhook-timestamp") == Some(at_s.to_string());
        let received = text(&headers, "webhook-signature").unwrap_or_default();
        assert!(!as_written || received.split(' ').any(|one| one == expected), "{received}");
    }
    for (name, value) in
        [("webhook-id", &id), ("webhook-timestamp", &at_s.to_string()), ("webhook-signature", &expected)]
    {
        headers.insert(name, HeaderValue::from_str(value).expect("a valid header value"));
    }
    assert_eq!(verified(&headers, message.as_bytes()), Some(id));
    assert_eq!(verified(&headers, format!("{message} ").as_bytes()), None);
}
