//! Gives a job to a runtime: its payload is posted to the endpoint, the answer is the result (R7).

use std::time::Duration;

use domain::JobError;
use domain::limits::{ERROR_MESSAGE_BYTES, JSON_DEPTH, RESULT_BYTES};
use domain::pool::Handler;
use serde_json::Value;
use store::jobs::claim::ClaimedJob;
use store::jobs::settle::End;

use crate::openai::path_of;
use crate::relay::Relay;

/// What the message of a job begins with that the runtime refused; its status and its words follow.
pub(crate) const ANSWERED: &str = "it answered ";
/// How a stream of events is typed.
const EVENTS: &[u8] = b"text/event-stream";

pub(super) async fn post(
    http: &reqwest::Client,
    relay: &Relay,
    endpoint: &str,
    handler: &Handler,
    job: &ClaimedJob,
) -> End {
    // Jobs of the OpenAI-compatible face go where that API has them.
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
    let mut answer = match sending.await {
        Ok(answer) => answer,
        Err(error) if error.is_timeout() => {
            return failed("timeout", format!("no answer within {timeout_s} s"), true);
        }
        Err(error) => return failed("handler_unreachable", error.without_url().to_string(), true),
    };
    let status = answer.status();
    let mut body = Vec::new();
    let is_stream = answer.headers().get("content-type").is_some_and(|kind| kind.as_bytes().starts_with(EVENTS));
    let mut listener = relay.listener(job.run.as_deref(), job.epoch).filter(|_| status.is_success() && is_stream);
    loop {
        match answer.chunk().await {
            Ok(Some(chunk)) if body.len() + chunk.len() > RESULT_BYTES => {
                return failed("result_too_large", format!("the answer has more than {RESULT_BYTES} bytes"), false);
            }
            Ok(Some(chunk)) => {
                body.extend_from_slice(&chunk);
                // A listener that went away is not spoken to any more; the answer is kept all the same.
                if let Some(heard) = &listener
                    && !heard.say(chunk).await
                {
                    listener = None;
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

/// JSON as it came; anything else as a text.
fn result(body: Vec<u8>) -> Option<Box<str>> {
    if body.is_empty() {
        return None;
    }
    let text = String::from_utf8_lossy(&body).into_owned();
    // Read whole: what nests too deep would fail in the database, with everybody else's answers in the same commit.
    match serde_json::from_str::<Value>(&text) {
        Ok(value) if depth(&value) <= JSON_DEPTH => Some(text.into()),
        _ => Some(Value::String(text.replace('\0', "\u{fffd}")).to_string().into()),
    }
}

/// How deep it nests; the parser has a limit of its own, so this goes no deeper.
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

    #[test]
    fn x10_an_answer_is_kept_as_it_came_unless_no_database_would_take_it() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        let kept = |body: &str| result(body.as_bytes().to_vec()).expect("an answer");
        for json in [r#"{"a": [1, 2.50, "x"]}"#, "7", nested(JSON_DEPTH).as_str()] {
            assert_eq!(*kept(json), *json);
        }
        for text in ["not JSON", r#""\ud800""#, nested(JSON_DEPTH + 1).as_str(), nested(10_000).as_str()] {
            assert_eq!(*kept(text), *Value::from(text).to_string());
        }
        assert_eq!(result(Vec::new()), None);
    }
}
