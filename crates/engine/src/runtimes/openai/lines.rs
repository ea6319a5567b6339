//! Lines of a batch: parses the input file, and formats the output and error files.

use std::collections::HashSet;

use domain::limits::{BATCH_ERRORS, BATCH_LINES, PAYLOAD_BYTES};
use domain::{JobState, Label};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use store::runtimes::openai::steps::LineResult;
use store::runtimes::openai::{BatchStatus, LineFault};

use super::{Models, refusal};

#[derive(Debug)]
pub struct InputLine<'t> {
    pub custom_id: String,
    pub model: String,
    pub body: &'t RawValue,
}

#[derive(Deserialize)]
struct InputRequest<'t> {
    custom_id: String,
    method: String,
    url: String,
    #[serde(borrow)]
    body: &'t RawValue,
}

/// Parses all lines, or returns the invalid ones. Without `models`, the existence of models is not checked.
pub fn read<'t>(
    input: &'t [u8],
    endpoint: &str,
    models: Option<&Models>,
) -> Result<Vec<InputLine<'t>>, Vec<LineFault>> {
    let fault = |code: &str, message: String, line: Option<i64>| LineFault { code: code.into(), message, line };
    let Ok(text) = std::str::from_utf8(input) else {
        return Err(vec![fault("invalid_encoding", "the file is not UTF-8".into(), None)]);
    };
    let (mut lines, mut faults, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
    for (number, text) in text.lines().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
        let at = Some(number as i64 + 1);
        if lines.len() >= BATCH_LINES {
            return Err(vec![fault("too_many_requests", format!("a batch may have at most {BATCH_LINES} lines"), at)]);
        }
        match line(text, endpoint, models) {
            Ok(line) if !seen.insert(line.custom_id.clone()) => {
                let message = format!("duplicate custom_id {}", line.custom_id);
                faults.push(fault("duplicate_custom_id", message, at));
            }
            Ok(line) => lines.push(line),
            Err((code, message)) => faults.push(fault(code, message, at)),
        }
        if faults.len() >= BATCH_ERRORS {
            break;
        }
    }
    if lines.is_empty() && faults.is_empty() {
        faults.push(fault("empty_file", "the file has no lines".into(), None));
    }
    if faults.is_empty() { Ok(lines) } else { Err(faults) }
}

fn line<'t>(text: &'t str, endpoint: &str, models: Option<&Models>) -> Result<InputLine<'t>, (&'static str, String)> {
    // serde deserializes an array into a struct as well.
    if !text.trim_start().starts_with('{') {
        return Err(("invalid_json_line", "the line must be a JSON object".into()));
    }
    let request: InputRequest<'t> =
        serde_json::from_str(text).map_err(|error| ("invalid_json_line", format!("invalid request: {error}")))?;
    let InputRequest { custom_id, method, url, body } = request;
    Label::new(&custom_id).map_err(|error| ("invalid_custom_id", format!("the custom_id {error}")))?;
    if method != "POST" {
        return Err(("invalid_method", format!("the method must be POST, not {method}")));
    }
    if url != endpoint {
        return Err(("invalid_url", format!("the url must be the batch's endpoint {endpoint}, not {url}")));
    }
    if body.get().len() > PAYLOAD_BYTES {
        return Err(("body_too_large", format!("the body may have at most {PAYLOAD_BYTES} bytes")));
    }
    // Parsed completely, so that nesting that a database cannot store is refused here.
    let read: Value =
        serde_json::from_str(body.get()).map_err(|error| ("invalid_body", format!("invalid body: {error}")))?;
    let Some(model) = read.get("model").and_then(Value::as_str) else {
        return Err(("missing_model", "the body must have a `model`".into()));
    };
    if read.get("stream").and_then(Value::as_bool) == Some(true) {
        return Err(("invalid_body", "streaming is not supported in a batch".into()));
    }
    if models.is_some_and(|models| !models.contains_key(model)) {
        return Err(("model_not_found", format!("no pool has the model {model}")));
    }
    Ok(InputLine { custom_id, model: model.to_owned(), body })
}

#[derive(Serialize)]
struct OutputLine<'a> {
    id: String,
    custom_id: &'a str,
    response: Option<OutputResponse<'a>>,
    error: Option<OutputError<'a>>,
}

#[derive(Serialize)]
struct OutputResponse<'a> {
    status_code: u16,
    request_id: String,
    body: &'a RawValue,
}

#[derive(Serialize)]
struct OutputError<'a> {
    code: &'a str,
    message: &'a str,
}

/// The error of lines that never ran, by how their batch ended.
fn not_run(end: BatchStatus) -> OutputError<'static> {
    match end {
        BatchStatus::Expired => {
            OutputError { code: "batch_expired", message: "the request did not complete within the completion window" }
        }
        BatchStatus::Cancelled => OutputError { code: "batch_cancelled", message: "the batch was cancelled" },
        _ => OutputError { code: "request_cancelled", message: "the request was cancelled" },
    }
}

/// Formats the outcome of a line for the output file or, unless it succeeded, for the error file.
pub(crate) fn write(ended: &LineResult, end: BatchStatus) -> String {
    let id = ended.job.uuid().simple();
    let answered = match (ended.state, &ended.error) {
        (JobState::Succeeded, _) => {
            let body = ended.result.clone().and_then(|result| RawValue::from_string(result).ok());
            Some((200, body.unwrap_or_else(null)))
        }
        (_, Some(error)) => refusal(error),
        (_, None) => None,
    };
    let response = answered.as_ref().map(|(status_code, body)| OutputResponse {
        status_code: *status_code,
        request_id: format!("req_{id}"),
        body,
    });
    let error = match (&response, &ended.error) {
        (Some(_), _) => None,
        (None, Some(error)) => Some(OutputError { code: &error.code, message: &error.message }),
        (None, None) => Some(not_run(end)),
    };
    text(&OutputLine { id: format!("batch_req_{id}"), custom_id: &ended.custom_id, response, error })
}

/// Same as `write`, for a line without a job.
pub(crate) fn write_without_job(batch: &str, line: &InputLine<'_>, end: BatchStatus) -> String {
    let id = format!("batch_req_{}_{}", batch.trim_start_matches("batch_"), line.custom_id);
    text(&OutputLine { id, custom_id: &line.custom_id, response: None, error: Some(not_run(end)) })
}

fn null() -> Box<RawValue> {
    RawValue::from_string("null".into()).expect("null is JSON")
}

fn text(written: &OutputLine<'_>) -> String {
    let mut line = serde_json::to_string(written).expect("plain data has a JSON form");
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use domain::{JobError, JobId, Name, Time};
    use serde_json::json;

    use super::super::Model;
    use super::*;

    /// Requirement R8.
    #[test]
    fn an_input_file_is_accepted_completely_or_its_errors_have_codes() {
        let good =
            r#"{"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": "m", "input": "x"}}"#;
        let name = Name::stored("q");
        let model = Model { pool: name.clone(), queue: name, created_at: Time::from_micros(0) };
        let models = Models::from([("m".to_owned(), model)]);
        let check = |text: &str| {
            let read = read(text.as_bytes(), "/v1/embeddings", Some(&models));
            read.map(|lines| lines.into_iter().map(|line| line.custom_id).collect::<Vec<_>>())
        };
        let ids = check(&format!("{good}\n\n{}\r\n", good.replace("\"a\"", "\"b\""))).expect("two lines");
        assert_eq!(ids, ["a", "b"]);
        let deep = format!("\"input\": {}{}, \"x\"", "[".repeat(200), "]".repeat(200));
        for (text, code) in [
            ("".to_owned(), "empty_file"),
            ("{".to_owned(), "invalid_json_line"),
            (r#"["a", "POST", "/v1/embeddings", {"model": "m"}]"#.to_owned(), "invalid_json_line"),
            (format!("{good}\n{good}"), "duplicate_custom_id"),
            (good.replace("\"a\"", "\"\\u0000\""), "invalid_custom_id"),
            (good.replace("POST", "GET"), "invalid_method"),
            (good.replace("embeddings", "completions"), "invalid_url"),
            (good.replace("\"m\"", "\"other\""), "model_not_found"),
            (good.replace("\"model\": \"m\", ", ""), "missing_model"),
            (good.replace("\"input\"", "\"stream\": true, \"input\""), "invalid_body"),
            (good.replace("\"input\"", &deep), "invalid_body"),
        ] {
            let faults = check(&text).expect_err("is refused");
            assert_eq!(faults[0].code, code, "{text}");
        }
    }

    /// Requirement R8.
    #[test]
    fn an_output_line_holds_the_response_or_the_error() {
        let check = |state, result: Option<&str>, error: Option<&str>, expected: Value| {
            let error = error.map(|message| JobError { code: "c".into(), message: message.into(), retryable: false });
            let job = JobId::new(uuid::Uuid::nil());
            let ended = LineResult { job, custom_id: "a".into(), state, result: result.map(Into::into), error };
            let mut line: Value = serde_json::from_str(&write(&ended, BatchStatus::Expired)).expect("JSON");
            let line = line.as_object_mut().expect("an object");
            assert_eq!((line.remove("custom_id"), line.remove("id").is_some()), (Some(json!("a")), true));
            if let Some(response) = line["response"].as_object_mut() {
                assert!(response.remove("request_id").is_some());
            }
            assert_eq!(json!(line), expected);
        };
        let succeeded = json!({"response": {"status_code": 200, "body": {"x": 1}}, "error": null});
        check(JobState::Succeeded, Some(r#"{"x": 1}"#), None, succeeded);
        let refused = json!({"response": {"status_code": 400, "body": {"error": {}}}, "error": null});
        check(JobState::Failed, None, Some(r#"it answered 400: {"error": {}}"#), refused);
        let lost = json!({"response": null, "error": {"code": "c", "message": "no route"}});
        check(JobState::Failed, None, Some("no route"), lost);
        let message = "the request did not complete within the completion window";
        let late = json!({"response": null, "error": {"code": "batch_expired", "message": message}});
        check(JobState::Canceled, None, None, late);
    }
}
