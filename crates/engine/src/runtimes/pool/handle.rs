//! Posts a job's payload to a runtime. The response is the job's result.

use std::time::Duration;

use domain::JobError;
use domain::limits::{ERROR_MESSAGE_BYTES, JSON_DEPTH, RESULT_BYTES};
use domain::runtimes::pool::Handler;
use serde_json::Value;
use store::queue::claim::ClaimedJob;
use store::queue::settle::End;

use crate::queue::relay::Relay;
use crate::runtimes::openai::path_of;

/// Prefix of the error message of a job that the runtime refused. The status and the body follow.
pub(crate) const ANSWERED: &str = "it answered ";
/// Content type of server-sent events.
const EVENTS: &[u8] = b"text/event-stream";

pub(super) async fn post(
    http: &reqwest::Client,
    relay: &Relay,
    endpoint: &str,
    handler: &Handler,
    job: &ClaimedJob,
) -> End {
    // Jobs of the OpenAI-compatible API use the paths of that API.
    let path = path_of(job.kind.as_str()).unwrap_or(handler.path.as_str());
    let timeout_s = job.timeout_s.map_or(handler.timeout_s, |own| own.min(handler.timeout_s));
    let sending = http
        .post(format!("{endpoint}{path}"))
        .header("content-type", "application/json")
        .header("x-windlass-job", job.id.to_string())
        .header("x-windlass-attempt", job.attempt.to_string())
        .timeout(Duration::from_secs(timeout_s.max(1) as u64))
        .body(job.payload.clone())
        .send();
    let failed = |code: &str, message: String, retryable| End::Fail(JobError { code: code.into(), message, retryable });
    let mut response = match sending.await {
        Ok(response) => response,
        Err(error) if error.is_timeout() => {
            return failed("timeout", format!("no response within {timeout_s} s"), true);
        }
        Err(error) => return failed("handler_unreachable", error.without_url().to_string(), true),
    };
    let status = response.status();
    let mut body = Vec::new();
    let is_stream = response.headers().get("content-type").is_some_and(|kind| kind.as_bytes().starts_with(EVENTS));
    let mut subscriber = relay.sender(job.run.as_deref(), job.epoch).filter(|_| status.is_success() && is_stream);
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) if body.len() + chunk.len() > RESULT_BYTES => {
                return failed("result_too_large", format!("the response exceeds {RESULT_BYTES} bytes"), false);
            }
            Ok(Some(chunk)) => {
                body.extend_from_slice(&chunk);
                // If the subscriber disconnects, the response is still collected.
                if let Some(sender) = &subscriber
                    && !sender.send(chunk).await
                {
                    subscriber = None;
                }
            }
            Ok(None) => break,
            Err(error) => return failed("handler_unreachable", error.without_url().to_string(), true),
        }
    }
    if status.is_success() {
        return End::Finish(result(body));
    }
    let mut text = String::from_utf8_lossy(&body).into_owned();
    text.truncate(text.floor_char_boundary(ERROR_MESSAGE_BYTES));
    let again = status.is_server_error() || matches!(status.as_u16(), 408 | 425 | 429);
    let code = if again { "handler_failed" } else { "handler_refused" };
    failed(code, format!("{ANSWERED}{}: {text}", status.as_u16()), again)
}

/// JSON is stored unchanged, anything else as a JSON string.
fn result(body: Vec<u8>) -> Option<Box<str>> {
    if body.is_empty() {
        return None;
    }
    let text = String::from_utf8_lossy(&body).into_owned();
    // Parsed completely: deeper nesting would fail in the database, together with the other jobs of the same group
    // commit.
    match serde_json::from_str::<Value>(&text) {
        Ok(value) if depth(&value) <= JSON_DEPTH => Some(text.into()),
        _ => Some(Value::String(text.replace('\0', "\u{fffd}")).to_string().into()),
    }
}

/// The nesting depth. The parser has a limit of its own, so the recursion is bounded.
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or_default(),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or_default(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement X10.
    #[test]
    fn a_response_is_stored_unchanged_unless_it_is_not_storable_json() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        let stored = |body: &str| result(body.as_bytes().to_vec()).expect("a result");
        for json in [r#"{"a": [1, 2.50, "x"]}"#, "7", nested(JSON_DEPTH).as_str()] {
            assert_eq!(*stored(json), *json);
        }
        for text in ["not JSON", r#""\ud800""#, nested(JSON_DEPTH + 1).as_str(), nested(10_000).as_str()] {
            assert_eq!(*stored(text), *Value::from(text).to_string());
        }
        assert_eq!(result(Vec::new()), None);
    }
}
