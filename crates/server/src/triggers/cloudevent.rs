//! CloudEvents 1.0 over HTTP in binary, structured and batch mode.

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderName};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use domain::Label;
use domain::limits::{BATCH_EVENTS, BODY_BYTES};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::error::ApiError;
use crate::json;

/// The parts of a CloudEvent that triggers use.
#[derive(Debug, Clone)]
pub(crate) struct CloudEvent {
    pub(crate) id: String,
    pub(crate) source: String,
    pub(crate) kind: Label,
    pub(crate) subject: Option<String>,
    pub(crate) time: Option<String>,
    /// Data as JSON.
    pub(crate) data: String,
}

const STRUCTURED: &str = "application/cloudevents+json";
const BATCH: &str = "application/cloudevents-batch+json";
const CE_ID: HeaderName = HeaderName::from_static("ce-id");
const CE_SOURCE: HeaderName = HeaderName::from_static("ce-source");
const CE_TYPE: HeaderName = HeaderName::from_static("ce-type");
const CE_SUBJECT: HeaderName = HeaderName::from_static("ce-subject");
const CE_TIME: HeaderName = HeaderName::from_static("ce-time");
const CE_VERSION: HeaderName = HeaderName::from_static("ce-specversion");
/// Maximum length of an id, source or subject.
const ATTRIBUTE_BYTES: usize = 1_024;
/// Maximum size of an event without its data: attributes and extensions.
const ENVELOPE_BYTES: usize = 64 << 10;

/// Unknown members are extensions and are accepted.
#[derive(Deserialize)]
struct Structured<'a> {
    specversion: Option<String>,
    id: Option<String>,
    source: Option<String>,
    r#type: Option<String>,
    #[serde(default)]
    subject: Option<String>,
    #[serde(default)]
    time: Option<String>,
    #[serde(default, borrow)]
    data: Option<&'a RawValue>,
    #[serde(default)]
    data_base64: Option<String>,
}

/// Returns the events of a request, or None if it carries no CloudEvent.
pub(crate) fn read(headers: &HeaderMap, body: &[u8]) -> Result<Option<Vec<CloudEvent>>, ApiError> {
    let content_type = content_type(headers);
    match content_type.as_deref() {
        Some(STRUCTURED) => {
            let event: Structured<'_> = json::borrowed(json::text(body)?)?;
            Ok(Some(vec![structured("", event)?]))
        }
        Some(BATCH) => {
            let events: Vec<Structured<'_>> = json::borrowed(json::text(body)?)?;
            if events.is_empty() || events.len() > BATCH_EVENTS {
                let detail = format!("a batch must have 1 to {BATCH_EVENTS} events; it has {}", events.len());
                return Err(ApiError::invalid_field("", detail));
            }
            let event = |(number, event)| structured(&format!("[{number}]."), event);
            events.into_iter().enumerate().map(event).collect::<Result<_, _>>().map(Some)
        }
        _ if headers.contains_key(&CE_TYPE) || headers.contains_key(&CE_ID) => {
            binary(headers, content_type.as_deref(), body).map(|event| Some(vec![event]))
        }
        _ => Ok(None),
    }
}

/// Returns the maximum body size if the data of one event may have `data_bytes`. Data may be base64-encoded.
pub(crate) fn body_bytes(headers: &HeaderMap, data_bytes: usize) -> usize {
    let limit = match content_type(headers).as_deref() {
        Some(BATCH) => BODY_BYTES,
        Some(STRUCTURED) => 2 * data_bytes + ENVELOPE_BYTES,
        _ => data_bytes,
    };
    limit.min(BODY_BYTES)
}

fn content_type(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    Some(text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase())
}

fn structured(prefix: &str, event: Structured<'_>) -> Result<CloudEvent, ApiError> {
    let field = |name: &str| format!("{prefix}{name}");
    if event.specversion.as_deref() != Some("1.0") {
        return Err(ApiError::invalid_field(field("specversion"), "must be 1.0"));
    }
    let required = |name: &str, value: Option<String>| {
        let value = value.filter(|value| !value.is_empty());
        let value = value.ok_or_else(|| ApiError::invalid_field(field(name), "is missing"))?;
        check_length(&field(name), value)
    };
    let kind = required("type", event.r#type)?;
    let data = match (event.data, event.data_base64) {
        (Some(_), Some(_)) => {
            return Err(ApiError::invalid_field(
                field("data_base64"),
                "cannot be combined with data; send one of them",
            ));
        }
        (Some(data), None) => data.get().to_owned(),
        (None, Some(bytes)) => {
            let bytes = STANDARD.decode(&bytes);
            let bytes = bytes.map_err(|_| ApiError::invalid_field(field("data_base64"), "must be base64"))?;
            json_of_bytes(&bytes)
        }
        (None, None) => "null".to_owned(),
    };
    Ok(CloudEvent {
        id: required("id", event.id)?,
        source: required("source", event.source)?,
        kind: Label::new(&kind).map_err(|error| ApiError::invalid_field(field("type"), error))?,
        subject: event.subject.map(|subject| check_length(&field("subject"), subject)).transpose()?,
        time: event.time.map(|time| check_length(&field("time"), time)).transpose()?,
        data,
    })
}

fn check_length(field: &str, text: String) -> Result<String, ApiError> {
    if text.len() > ATTRIBUTE_BYTES || text.chars().any(char::is_control) {
        let detail = format_args!("may have at most {ATTRIBUTE_BYTES} bytes, without control characters");
        return Err(ApiError::invalid_field(field, detail));
    }
    Ok(text)
}

fn binary(headers: &HeaderMap, content_type: Option<&str>, body: &[u8]) -> Result<CloudEvent, ApiError> {
    let attribute = |name: &HeaderName| -> Result<Option<String>, ApiError> {
        let text = crate::extract::header(headers, name)?.map(percent_decode).filter(|text| !text.is_empty());
        match text {
            Some(text) if text.len() > ATTRIBUTE_BYTES || text.chars().any(char::is_control) => {
                Err(ApiError::invalid_header(name.as_str(), "is too long or contains control characters"))
            }
            text => Ok(text),
        }
    };
    let required = |name: &HeaderName| {
        attribute(name)?.ok_or_else(|| ApiError::invalid_header(name.as_str(), "is missing from the CloudEvent"))
    };
    if required(&CE_VERSION)? != "1.0" {
        return Err(ApiError::invalid_header("ce-specversion", "must be 1.0"));
    }
    let is_json = |text: &str| text == "application/json" || text.ends_with("+json");
    let data = match content_type {
        Some(text) if !is_json(text) => json_of_bytes(body),
        // Some libraries send JSON without a Content-Type.
        None => match json::any(body) {
            Ok(data) => data.into(),
            Err(_) => json_of_bytes(body),
        },
        _ if body.is_empty() => "null".to_owned(),
        _ => json::any(body)?.into(),
    };
    let kind = required(&CE_TYPE)?;
    Ok(CloudEvent {
        id: required(&CE_ID)?,
        source: required(&CE_SOURCE)?,
        kind: Label::new(&kind).map_err(|error| ApiError::invalid_header("ce-type", error))?,
        subject: attribute(&CE_SUBJECT)?,
        time: attribute(&CE_TIME)?,
        data,
    })
}

/// Decodes percent-encoding. Header values encode everything except visible ASCII.
fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = |digit: &u8| (*digit as char).to_digit(16);
        match (first, tail) {
            (b'%', [high, low, after @ ..]) if hex(high).is_some() && hex(low).is_some() => {
                bytes.push((hex(high).unwrap_or(0) * 16 + hex(low).unwrap_or(0)) as u8);
                rest = after;
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

/// Encodes data that is not JSON: text as a string, other bytes as base64.
fn json_of_bytes(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => serde_json::Value::from(text).to_string(),
        Err(_) => serde_json::json!({ "data_base64": STANDARD.encode(bytes) }).to_string(),
    }
}
