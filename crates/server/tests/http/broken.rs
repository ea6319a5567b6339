//! Fuzzing over HTTP: valid requests are damaged at random. No request may cause a 5xx or a panic, and every rejection
//! must be a problem document. Every parser of external input is reached through some route: bodies, ids, cursors,
//! times, schedules, selectors, globs, expressions, patterns, headers.
//!
//! The tests include a short run. `WINDLASS_FUZZ_SEED` and `WINDLASS_FUZZ_REQUESTS` select another or a longer one.

use axum::body::Body;
use axum::http::{HeaderValue, Request};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use testkit::{Database, on_both};

use crate::api::{Api, request};

const REQUESTS: u64 = 1_500;

/// Valid requests for every route that parses external input.
fn corpus() -> Vec<(&'static str, &'static str, Value)> {
    let job = json!({"queue": "q", "kind": "k", "payload": {"n": 1}, "affinity": "m", "priority": 3,
        "run_at": "2030-01-01T00:00:00Z", "subject": "s", "process": "p", "run": "r", "unique_key": "u", "unique_for_s": 60,
        "concurrency_key": "c", "max_attempts": 3, "timeout_s": 60, "tags": ["a", "b"],
        "retry": {"initial_s": 1, "maximum_s": 60, "exponent": 2.0, "jitter": 0.1},
        "webhook": {"url": "https://example.org/", "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}});
    let cron = json!({"name": "c", "source": "cron", "filter": {"schedule": "*/5 2 * * MON-FRI", "timezone": "Europe/Berlin",
        "missed": "coalesce"}, "target": {"job": {"queue": "q", "kind": "k"}}});
    let kv = json!({"name": "t", "source": "kv", "filter": {"collection": "users:*", "key": "a*", "ops": ["set"],
        "when": "data.age > 17 and event.key != 'x'"}, "mode": "async", "retry": {"max_attempts": 3, "initial_s": 1},
        "target": {"job": {"queue": "q", "kind": "k", "payload": {"user": "{{ event.key }}", "n": "{{ data.n + 1 }}"}}}});
    let process = json!({"queue": "q", "kind": "k", "selector": {"kind": "machine", "all": [{"fact": "os", "equals": "linux"}],
        "any": [{"fact": "up", "exists": true}], "not": [{"fact": "patched", "older_than_s": 3600}]},
        "every_s": 60, "max_active": 3, "excludes": ["scrub"], "backoff": {"initial_s": 1}});
    let signature = json!({"pattern": {"kind": "k", "error_code": "boom", "phase": "load",
        "subject_pattern": "disk (full|gone) on [a-z]+[0-9]{1,3}"},
        "outcome": {"likely_cause": "the disk", "suggested_action": "another disk", "mttr_p50_seconds": 60.0,
        "remediation_url": "https://example.org/"}, "confidence": 0.5, "expires_at": "2030-01-01T00:00:00Z"});
    vec![
        ("POST", "/api/v1/jobs", job.clone()),
        ("POST", "/api/v1/jobs/batch", json!({"jobs": [job, {"queue": "q", "kind": "k"}]})),
        ("POST", "/api/v1/jobs/cancel", json!({"queue": "q", "unique_key": "u"})),
        (
            "GET",
            "/api/v1/jobs?queue=q&state=queued&kind=k&tag=a&since=2026-01-01T00:00:00Z&limit=5&text=k",
            Value::Null,
        ),
        ("GET", "/api/v1/jobs?limit=1&cursor=AWoBkPOgAABwAIAAAAAAAAAB", Value::Null),
        ("GET", "/api/v1/jobs/0190f3a0-0000-7000-8000-000000000001?wait=0s", Value::Null),
        (
            "POST",
            "/api/v1/workers",
            json!({"name": "w", "queues": ["q"], "kinds": ["k"], "affinities": ["m"], "lease_s": 5}),
        ),
        ("POST", "/api/v1/workers/0190f3a0-0000-7000-8000-000000000001/claim", json!({"max": 3, "affinity": "m"})),
        (
            "POST",
            "/api/v1/workers/0190f3a0-0000-7000-8000-000000000001/settle",
            json!({"outcomes": [
            {"job_id": "0190f3a0-0000-7000-8000-000000000001", "epoch": 1, "outcome": "fail",
             "error": {"code": "boom", "message": "it broke", "retryable": true}},
            {"job_id": "0190f3a0-0000-7000-8000-000000000002", "epoch": 1, "outcome": "snooze", "delay_s": 1.5}]}),
        ),
        (
            "PUT",
            "/api/v1/queues/q",
            json!({"concurrency": 3, "per_key": 1, "rate_per_s": 2.5, "retention_s": 60,
            "starvation_s": 10, "timeout_s": 10, "phases": ["one"], "retry": {"initial_s": 1}}),
        ),
        ("PUT", "/api/v1/kv/users/ann", json!({"age": 30})),
        ("POST", "/api/v1/topics/orders:7", json!({"id": 7})),
        (
            "POST",
            "/api/v1/events",
            json!({"specversion": "1.0", "id": "1", "source": "/s", "type": "t",
            "time": "2026-01-01T00:00:00Z", "datacontenttype": "application/json", "data": {"n": 1}}),
        ),
        ("POST", "/api/v1/triggers", cron),
        ("POST", "/api/v1/triggers", kv),
        ("PUT", "/api/v1/subjects/machine-1", json!({"facts": {"os": "linux", "n": 1, "up": true}})),
        ("PUT", "/api/v1/processes/patch", process),
        ("POST", "/api/v1/signatures", signature),
        (
            "POST",
            "/api/v1/signatures/match",
            json!({"phase": "load", "error_code": "boom", "kind": "k", "subject": "disk full on sda1"}),
        ),
        ("GET", "/api/v1/dead-letters?source=job&queue=q&limit=3", Value::Null),
        (
            "POST",
            "/api/v1/dead-letters/replay",
            json!({"filter": {"source": "job", "queue": "q", "since": "2026-01-01T00:00:00Z"}, "dry_run": true}),
        ),
        ("POST", "/api/v1/dead-letters/replay", json!({"ids": ["0190f3a0-0000-7000-8000-000000000001"]})),
        ("GET", "/api/v1/deliveries?state=failed&limit=2", Value::Null),
        ("GET", "/api/v1/signals?kind=queued&limit=3", Value::Null),
        ("GET", "/api/v1/ttfs/summary?by=hour", Value::Null),
    ]
}

/// Returns the content type of a valid body.
fn media_type(path: &str) -> &'static str {
    if path == "/api/v1/events" { "application/cloudevents+json" } else { "application/json" }
}

fn bytes(body: &Value) -> Vec<u8> {
    if body.is_null() { Vec::new() } else { body.to_string().into_bytes() }
}

/// Returns a value that parsers may not expect.
fn odd(rng: &mut StdRng) -> Value {
    match rng.random_range(0..18) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(-1),
        3 => json!(0),
        4 => json!(i64::MIN),
        5 => json!(u64::MAX),
        6 => json!(1e308),
        7 => json!(0.1),
        8 => json!(""),
        9 => json!("\u{0}"),
        10 => json!("x".repeat(70_000)),
        11 => json!("\u{202e}\u{feff}ß💥"),
        12 => json!("{{ 1 / 0 }}{% for i in range(99999999) %}x{% endfor %}"),
        13 => json!("(a+)+$|[[:alpha:]]{1000}{1000}"),
        14 => json!([[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]),
        15 => json!({"a": {"b": {"c": []}}}),
        16 => json!("9999-12-31T23:59:59.999999999Z"),
        _ => json!("* * 30 2 * /0 L#9"),
    }
}

/// Changes one value at a random depth.
fn change(rng: &mut StdRng, value: &mut Value) {
    match value {
        Value::Object(members) if !members.is_empty() && rng.random_ratio(5, 6) => {
            let name = members.keys().nth(rng.random_range(0..members.len())).expect("in range").clone();
            match rng.random_range(0..8) {
                0 => drop(members.remove(&name)),
                1 => drop(members.insert("unknown_member".into(), odd(rng))),
                2 => drop(members.insert(name, odd(rng))),
                _ => change(rng, members.get_mut(&name).expect("the member exists")),
            }
        }
        Value::Array(items) if !items.is_empty() && rng.random_ratio(3, 4) => {
            let at = rng.random_range(0..items.len());
            if rng.random_ratio(1, 6) {
                let item = items[at].clone();
                items.extend(std::iter::repeat_n(item, 1_200));
            } else {
                change(rng, &mut items[at]);
            }
        }
        Value::String(text) if rng.random_ratio(1, 2) => *text = damaged_text(rng, text),
        value => *value = odd(rng),
    }
}

fn damaged_text(rng: &mut StdRng, text: &str) -> String {
    let mut letters: Vec<char> = text.chars().collect();
    for _ in 0..rng.random_range(1..4) {
        let at = rng.random_range(0..=letters.len());
        let letter = ['*', '/', '{', '}', '%', '"', '\\', '\u{0}', '-', '9', ' ', '(', '[', '.', 'ß', '\n'];
        match rng.random_range(0..3) {
            0 if at < letters.len() => drop(letters.remove(at)),
            _ => letters.insert(at, letter[rng.random_range(0..letter.len())]),
        }
    }
    letters.into_iter().collect()
}

fn damaged_bytes(rng: &mut StdRng, mut bytes: Vec<u8>) -> Vec<u8> {
    for _ in 0..rng.random_range(1..5) {
        let at = rng.random_range(0..=bytes.len());
        match rng.random_range(0..4) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, rng.random_range(0..=255)),
            2 if at < bytes.len() => bytes[at] = rng.random_range(0..=255),
            _ => bytes.extend_from_within(..at),
        }
    }
    bytes
}

/// Inserts percent escapes and odd characters, but nothing that is not a URI: the HTTP layer rejects that earlier.
fn damaged_path(rng: &mut StdRng, path: &str) -> String {
    let mut letters: Vec<String> = path.chars().map(String::from).collect();
    for _ in 0..rng.random_range(1..4) {
        let at = rng.random_range(8..=letters.len());
        let piece = ["%00", "%ff", "%2f", "%", "..", "=", "&", "~", "0", "-", "+", "%C3%9F", "99999999999999999999"];
        match rng.random_range(0..3) {
            0 if at < letters.len() => drop(letters.remove(at)),
            _ => letters.insert(at, piece[rng.random_range(0..piece.len())].into()),
        }
    }
    letters.concat()
}

fn damaged_request(rng: &mut StdRng) -> Option<(String, Request<Body>)> {
    let corpus = corpus();
    let (method, path, mut body) = corpus[rng.random_range(0..corpus.len())].clone();
    let media_type = media_type(path);
    let path = if rng.random_ratio(1, 4) { damaged_path(rng, path) } else { path.to_owned() };
    let mut builder = request(method, &path);
    if method != "GET" || rng.random_ratio(1, 10) {
        let kinds = [
            "application/json",
            "application/cloudevents+json",
            "application/cloudevents-batch+json",
            "text/plain",
            "",
        ];
        let kind = if rng.random_ratio(1, 10) { kinds[rng.random_range(0..kinds.len())] } else { media_type };
        builder = builder.header("content-type", kind);
    }
    if rng.random_ratio(1, 4) {
        let names = [
            "idempotency-key",
            "windlass-depth",
            "webhook-id",
            "webhook-timestamp",
            "webhook-signature",
            "if-none-match",
            "last-event-id",
            "traceparent",
            "authorization",
            "ce-id",
            "ce-specversion",
            "ce-time",
            "content-length",
            "range",
        ];
        let values = [
            "",
            "x",
            "-1",
            "99999999999999999999",
            "v1,AAAA",
            "Bearer x",
            "00-0-0-0",
            "\"x\"",
            "bytes=-1",
            "1.0",
            "\u{e9}",
        ];
        let value = HeaderValue::from_bytes(values[rng.random_range(0..values.len())].as_bytes()).ok()?;
        builder = builder.header(names[rng.random_range(0..names.len())], value);
    }
    for _ in 0..rng.random_range(1..4) {
        change(rng, &mut body);
    }
    let mut bytes = bytes(&body);
    if rng.random_ratio(1, 5) {
        bytes = damaged_bytes(rng, bytes);
    }
    let description =
        format!("{method} {path} {}", String::from_utf8_lossy(&bytes).chars().take(400).collect::<String>());
    // The HTTP layer rejects what is not a request.
    Some((description, builder.body(Body::from(bytes)).ok()?))
}

/// Requirement X10.
#[tokio::test]
async fn the_unmodified_requests_of_the_corpus_are_valid() {
    on_both(async |db| {
        let api = Api::new(db).await;
        for (method, path, body) in corpus() {
            let valid = request(method, path).header("content-type", media_type(path));
            let response = api.send(valid.body(Body::from(bytes(&body))).unwrap()).await;
            let status = response.status.as_u16();
            assert!(![400, 415, 422].contains(&status), "{method} {path} got {status}: {:?}", response.body);
        }
    })
    .await;
}

async fn no_server_error(db: Database) {
    let seed = setting("WINDLASS_FUZZ_SEED").unwrap_or(1);
    let requests = setting("WINDLASS_FUZZ_REQUESTS").unwrap_or(REQUESTS);
    let api = Api::new(db).await;
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut accepted, mut rejected) = (0, 0);
    for number in 0..requests {
        let Some((description, request)) = damaged_request(&mut rng) else { continue };
        let response = api.send(request).await;
        let status = response.status.as_u16();
        assert!(status < 500, "request {number} of seed {seed} got {status} {:?}: {description}", response.body);
        if status >= 400 {
            let kind = response.header("content-type");
            assert_eq!(kind, "application/problem+json", "request {number} of seed {seed}, {status}: {description}");
            rejected += 1;
        } else {
            accepted += 1;
        }
    }
    println!("seed={seed} requests={requests} accepted={accepted} rejected={rejected} server_errors=0");
    assert!(accepted > 0 && rejected > accepted / 10, "the run must contain accepted and rejected requests");
    assert_eq!(api.db.store.verify().await.expect("verify succeeds").findings, []);
}

/// Requirement X10.
#[tokio::test]
async fn no_malformed_request_causes_a_server_error_on_sqlite() {
    no_server_error(Database::sqlite().await).await;
}

/// Requirement X10.
#[tokio::test]
async fn no_malformed_request_causes_a_server_error_on_postgres() {
    no_server_error(Database::postgres().await).await;
}

#[expect(clippy::disallowed_methods, reason = "the environment selects the seed and the length of a run")]
fn setting(name: &str) -> Option<u64> {
    Some(std::env::var(name).ok()?.parse().expect("the setting is a number"))
}
