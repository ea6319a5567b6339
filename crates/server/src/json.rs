//! JSON bodies, read so that a refusal names the field that is to blame.

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
    // Keeping track of the path costs time; it is walked again only to tell where an error is.
    let mut reader = serde_json::Deserializer::from_str(text);
    T::deserialize(Objects(&mut reader))
        .and_then(|value| reader.end().map(|()| value))
        .map_err(|error| explain::<T>(text, error))
}

/// UTF-8 that does not nest too deep.
pub(crate) fn text(body: &[u8]) -> Result<&str, ApiError> {
    let text = std::str::from_utf8(body).map_err(|error| {
        ApiError::invalid_json(format_args!("the body is not UTF-8 from byte {} on", error.valid_up_to()))
    })?;
    check(body)?;
    Ok(text)
}

/// Any one JSON value, as it came.
pub(crate) fn any(body: &[u8]) -> Result<Box<str>, ApiError> {
    let text = text(body)?;
    serde_json::from_str::<IgnoredAny>(text).map_err(not_json)?;
    Ok(text.trim_ascii().into())
}

/// What keeps parts of the text as they are. Here too an array is no object.
pub(crate) fn borrowed<'t, T: Deserialize<'t>>(text: &'t str) -> Result<T, ApiError> {
    let mut reader = serde_json::Deserializer::from_str(text);
    T::deserialize(Objects(&mut reader)).and_then(|value| reader.end().map(|()| value)).map_err(unreadable)
}

/// A body that cannot be taken, where no path to the fault is kept.
fn unreadable(error: serde_json::Error) -> ApiError {
    match error.classify() {
        Category::Data => ApiError::invalid_field("", format_args!("the body cannot be taken: {error}")),
        _ => not_json(error),
    }
}

/// The parser skips what it is not asked about without counting its depth, and databases and clients have limits. Nor does it
/// look for the other half of a surrogate pair there, without which strict readers refuse all that it stands in.
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

/// Moves past what is escaped: one byte, or a surrogate pair. Half of one is refused.
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
            return Err(ApiError::invalid_json(
                "a string holds half of a surrogate pair, which stands for no character",
            ));
        }
        // What is no digit is for the parser to refuse.
        _ => 0,
    };
    bytes.by_ref().take(length).for_each(drop);
    Ok(())
}

fn explain<T: DeserializeOwned>(text: &str, error: serde_json::Error) -> ApiError {
    if error.classify() != Category::Data {
        return not_json(error);
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
        return ApiError::invalid_field(member(named), format_args!("is not known; {}", expected(message)));
    }
    if message.starts_with("missing field") {
        return ApiError::invalid_field(member(named), "is missing");
    }
    if message.starts_with("duplicate field") {
        let field = member(named);
        return ApiError::duplicate_field(field.clone(), format_args!("{field} is given twice"));
    }
    ApiError::invalid_field(parent, format_args!("cannot be taken: {message}"))
}

fn not_json(error: serde_json::Error) -> ApiError {
    ApiError::invalid_json(format_args!("the body is not JSON: {error}"))
}

fn expected(message: &str) -> &str {
    message.split_once(", ").map_or("leave it out", |(_, expected)| expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_in_strings_are_not_nesting() {
        let text = format!("\"{}\\\"[\"", "[".repeat(1_000));
        assert!(check(text.as_bytes()).is_ok());
        assert!(check("[".repeat(JSON_DEPTH).as_bytes()).is_ok());
        assert!(check("[".repeat(JSON_DEPTH + 1).as_bytes()).is_err());
        assert!(check("{\"a\":".repeat(100_000).as_bytes()).is_err());
    }

    #[test]
    fn half_of_a_pair_is_refused_wherever_it_stands() {
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
