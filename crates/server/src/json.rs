//! JSON parsing of request bodies. An error names the field that caused it.

use domain::limits::JSON_DEPTH;
use serde::de::{Deserialize, DeserializeOwned, IgnoredAny};
use serde_json::error::Category;

use crate::error::ApiError;

mod objects;

use objects::Objects;

pub(crate) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let text = std::str::from_utf8(body).map_err(|error| {
        ApiError::invalid_json(format_args!("the body is not UTF-8 from byte {} on", error.valid_up_to()))
    })?;
    check(body)?;
    if !text.trim_ascii_start().starts_with('{') {
        serde_json::from_str::<IgnoredAny>(text).map_err(not_json)?;
        return Err(ApiError::invalid_field("", "the body must be a JSON object"));
    }
    // Tracking the path costs time, so the body is parsed again with the path only after an error.
    let mut reader = serde_json::Deserializer::from_str(text);
    T::deserialize(Objects(&mut reader))
        .and_then(|value| reader.end().map(|()| value))
        .map_err(|error| explain::<T>(text, error))
}

/// Checks that the body is UTF-8 and within the nesting limit.
pub(crate) fn text(body: &[u8]) -> Result<&str, ApiError> {
    let text = std::str::from_utf8(body).map_err(|error| {
        ApiError::invalid_json(format_args!("the body is not UTF-8 from byte {} on", error.valid_up_to()))
    })?;
    check(body)?;
    Ok(text)
}

/// Checks that the body is one JSON value and returns its original text.
pub(crate) fn any(body: &[u8]) -> Result<Box<str>, ApiError> {
    let text = text(body)?;
    serde_json::from_str::<IgnoredAny>(text).map_err(not_json)?;
    Ok(text.trim_ascii().into())
}

/// Parses a type that borrows parts of the text. As in `parse`, an array is not accepted for an object.
pub(crate) fn borrowed<'t, T: Deserialize<'t>>(text: &'t str) -> Result<T, ApiError> {
    let mut reader = serde_json::Deserializer::from_str(text);
    T::deserialize(Objects(&mut reader))
        .and_then(|value| reader.end().map(|()| value))
        .map_err(|error| unreadable(text, error))
}

/// Maps an error of a parser that does not track the path.
fn unreadable(text: &str, error: serde_json::Error) -> ApiError {
    match error.classify() {
        Category::Data => ApiError::invalid_field("", format_args!("the body is invalid: {error}")),
        _ => out_of_range(text, &error).unwrap_or_else(|| not_json(error)),
    }
}

/// A number such as 1e400 is JSON, but no double can hold it. The parser reports it as a syntax error. In values that it
/// skips, such as payloads, every number is stored unchanged.
fn out_of_range(text: &str, error: &serde_json::Error) -> Option<ApiError> {
    if !error.to_string().starts_with("number out of range") {
        return None;
    }
    let lines_before = text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum::<usize>();
    // The column is that of the last digit.
    let position = (lines_before + error.column()).min(text.len());
    let detail = "must be a smaller number: it exceeds the range of a double, about 1.8e308";
    Some(ApiError::invalid_field(path_of(text.as_bytes(), position), detail))
}

/// Enforces two rules that serde_json does not apply to values it skips: the nesting limit (databases and clients have
/// limits too), and complete surrogate pairs (strict readers refuse a whole document that contains half of one).
fn check(body: &[u8]) -> Result<(), ApiError> {
    let mut depth = 0usize;
    let mut in_string = false;
    let mut bytes = body.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => in_string = !in_string,
            b'\\' if in_string => skip_escape(&mut bytes)?,
            b'[' | b'{' if !in_string => {
                depth += 1;
                if depth > JSON_DEPTH {
                    return Err(ApiError::invalid_json(format_args!("the body nests deeper than {JSON_DEPTH} levels")));
                }
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

enum PathSegment {
    Member(String),
    Item(usize),
}

/// Returns the path of the value at a position outside of strings, such as `jobs[2].payload.n`.
fn path_of(body: &[u8], position: usize) -> String {
    let mut segments = Vec::new();
    let mut at = 0;
    while at < position {
        match body[at] {
            b'{' => segments.push(PathSegment::Member(String::new())),
            b'[' => segments.push(PathSegment::Item(0)),
            b'}' | b']' => drop(segments.pop()),
            b',' => {
                if let Some(PathSegment::Item(number)) = segments.last_mut() {
                    *number += 1;
                }
            }
            b'"' => {
                let end = end_of_string(body, at);
                // The last string before a value is the name of its member.
                if let Some(PathSegment::Member(name)) = segments.last_mut() {
                    *name = serde_json::from_slice(&body[at..end]).unwrap_or_default();
                }
                at = end;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    let mut path = String::new();
    for segment in segments {
        match segment {
            PathSegment::Member(name) if path.is_empty() => path = name,
            PathSegment::Member(name) => path = format!("{path}.{name}"),
            PathSegment::Item(number) => path = format!("{path}[{number}]"),
        }
    }
    path
}

/// Returns the position after the closing quote of the string that starts at `start`.
fn end_of_string(body: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < body.len() && body[at] != b'"' {
        at += if body[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(body.len())
}

/// Skips one escape sequence: one byte, or a surrogate pair. Half of a pair is refused.
fn skip_escape(bytes: &mut std::slice::Iter<'_, u8>) -> Result<(), ApiError> {
    if bytes.next() != Some(&b'u') {
        return Ok(());
    }
    let unit = |digits: Option<&[u8]>| {
        digits.and_then(|digits| std::str::from_utf8(digits).ok()).and_then(|text| u16::from_str_radix(text, 16).ok())
    };
    let rest = bytes.as_slice();
    let is_pair = rest.get(4..6) == Some(b"\\u") && matches!(unit(rest.get(6..10)), Some(0xDC00..=0xDFFF));
    let length = match unit(rest.get(..4)) {
        Some(0xD800..=0xDBFF) if is_pair => 10,
        Some(0xD800..=0xDFFF) => {
            return Err(ApiError::invalid_json("a string contains half of a surrogate pair, which is not a character"));
        }
        // The parser refuses malformed digits.
        _ => 0,
    };
    bytes.by_ref().take(length).for_each(drop);
    Ok(())
}

fn explain<T: DeserializeOwned>(text: &str, error: serde_json::Error) -> ApiError {
    if error.classify() != Category::Data {
        return out_of_range(text, &error).unwrap_or_else(|| not_json(error));
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    let path = match serde_path_to_error::deserialize::<_, T>(Objects(&mut reader)) {
        Err(error) => error.path().to_string(),
        Ok(_) => String::new(),
    };
    let message = error.to_string();
    let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(message, _)| message);
    let named = message.split('`').nth(1).unwrap_or_default();
    let parent = if path == "." { "" } else { path.as_str() };
    let member = |name: &str| match parent {
        "" => name.to_owned(),
        parent if parent == name || parent.ends_with(&format!(".{name}")) => parent.to_owned(),
        parent => format!("{parent}.{name}"),
    };
    if message.starts_with("unknown field") {
        return ApiError::invalid_field(member(named), format_args!("is not a known field; {}", expected(message)));
    }
    if message.starts_with("missing field") {
        return ApiError::invalid_field(member(named), "is missing");
    }
    if message.starts_with("duplicate field") {
        let field = member(named);
        return ApiError::duplicate_field(field.clone(), format_args!("{field} occurs twice"));
    }
    ApiError::invalid_field(parent, format_args!("is invalid: {message}"))
}

fn not_json(error: serde_json::Error) -> ApiError {
    ApiError::invalid_json(format_args!("the body is not JSON: {error}"))
}

fn expected(message: &str) -> &str {
    message.split_once(", ").map_or("remove it", |(_, expected)| expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_in_strings_do_not_count_as_nesting() {
        let text = format!("\"{}\\\"[\"", "[".repeat(1_000));
        assert!(check(text.as_bytes()).is_ok());
        assert!(check("[".repeat(JSON_DEPTH).as_bytes()).is_ok());
        assert!(check("[".repeat(JSON_DEPTH + 1).as_bytes()).is_err());
        assert!(check("{\"a\":".repeat(100_000).as_bytes()).is_err());
    }

    #[derive(Debug, serde::Deserialize)]
    #[expect(dead_code, reason = "only the errors are tested")]
    struct Body {
        rate: Option<f64>,
        count: Option<i64>,
        #[serde(default)]
        items: Vec<Body>,
        value: Option<serde_json::Value>,
        payload: Option<Box<serde_json::value::RawValue>>,
    }

    #[test]
    fn a_number_beyond_a_double_is_rejected_with_its_path() {
        let long = format!(r#"{{"rate": {}}}"#, "9".repeat(400));
        for (body, path) in [
            (r#"{"rate": 1e400}"#, "rate"),
            (r#"{"count":-1E400,"rate":1}"#, "count"),
            ("{\n \"payload\": 1e400,\n \"items\": [{},\n {\"rate\": 2.5e309}\n]}", "items[1].rate"),
            (r#"{"payload": "a,\"b[{", "value": {"x": [0, 1e400]}}"#, "value.x[1]"),
            (long.as_str(), "rate"),
        ] {
            let problem = parse::<Body>(body.as_bytes()).unwrap_err().problem();
            assert_eq!((problem.status, problem.field.unwrap_or_default().as_str()), (422, path), "{body}");
        }
        for good in [r#"{"rate": 1e308}"#, r#"{"rate": 1e-400}"#, r#"{"payload": {"n": 1e400}}"#] {
            assert!(parse::<Body>(good.as_bytes()).is_ok(), "{good}");
        }
    }

    #[test]
    fn a_lone_surrogate_is_rejected_anywhere() {
        for bad in
            [r#""\ud800""#, r#"{"a":["\uDFFF"]}"#, r#""\ud83d\u0041""#, r#""\ud83dx\ude00""#, r#""\ud83d\\ude00""#]
        {
            assert!(check(bad.as_bytes()).is_err(), "{bad}");
        }
        for good in [r#""\ud83d\ude00""#, r#""\\ud800""#, r#""\u00e4\n""#, r#""\u12""#, r#""\u""#] {
            assert!(check(good.as_bytes()).is_ok(), "{good}");
        }
    }
}
