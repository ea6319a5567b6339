//! Validation errors of a filter or a target, in terms of the API: the path of the field and what it must be. A serde
//! message alone has no path and names Rust types.

use std::fmt::Display;

use serde::de::{Deserialize, Deserializer};

/// An invalid field, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {detail}")]
pub struct Fault {
    pub field: String,
    pub detail: String,
}

impl Fault {
    pub fn new(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: field.into(), detail: detail.into() }
    }

    /// Prefixes the path with the enclosing member.
    pub fn within(self, member: &str) -> Self {
        Self { field: join_path(member, &self.field), ..self }
    }

    fn of_message(path: &str, message: &str) -> Self {
        let message = message.rsplit_once(" at line ").map_or(message, |(message, _)| message);
        let named = message.split('`').nth(1).unwrap_or_default();
        // The path includes an unknown field, but not a missing one.
        let member = || match path.rsplit('.').next() {
            Some(last) if last == named => path.to_owned(),
            _ => join_path(path, named),
        };
        if message.starts_with("missing field") {
            return Self::new(member(), "is missing");
        }
        if message.starts_with("duplicate field") {
            return Self::new(member(), "is specified twice");
        }
        if message.starts_with("unknown field") {
            let expected = message.split_once(", ").map_or("remove it", |(_, expected)| expected);
            return Self::new(member(), format!("is unknown; {expected}"));
        }
        let mismatch = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "));
        match mismatch.and_then(|mismatch| mismatch.rsplit_once(", expected ")) {
            Some((got, expected)) => {
                Self::new(path, format!("must be {}, not {}", describe_expected(expected), describe_found(got)))
            }
            None => Self::new(path, format!("is invalid: {message}")),
        }
    }
}

/// Deserializes a value. An error names the path of the invalid field.
pub fn read<'de, T, D>(reader: D) -> Result<T, Fault>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
    D::Error: Display,
{
    serde_path_to_error::deserialize(reader).map_err(|error| {
        let path = error.path().to_string();
        Fault::of_message(if path == "." { "" } else { &path }, &error.inner().to_string())
    })
}

fn join_path(outer: &str, inner: &str) -> String {
    match (outer, inner) {
        ("", only) | (only, "") => only.to_owned(),
        (outer, inner) => format!("{outer}.{inner}"),
    }
}

fn describe_expected(expected: &str) -> &str {
    match expected {
        "i8" | "i16" | "i32" | "i64" => "an integer",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a non-negative integer",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "an array",
        expected if expected == "a map" || expected.starts_with("struct ") => "an object",
        expected => expected,
    }
}

/// Describes the value that was found. It never repeats a string, which may be a secret in the wrong field.
fn describe_found(got: &str) -> &str {
    match got.split(' ').next() {
        Some("string" | "character") => "a string",
        Some("map") => "an object",
        Some("sequence") => "an array",
        _ => got.split('`').nth(1).unwrap_or(got),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, message: &str, expected: &str) {
        assert_eq!(Fault::of_message(path, message).to_string(), expected, "{message}");
    }

    #[test]
    fn deserialization_errors_are_worded_in_api_terms() {
        check("queue", "invalid type: integer `5`, expected a string", "queue must be a string, not 5");
        let text = "invalid type: string \"a, expected b\", expected struct RetryTemplate";
        check("retry", text, "retry must be an object, not a string");
        check("tags", "invalid type: map, expected a sequence", "tags must be an array, not an object");
        let negative = "invalid value: integer `-1`, expected u64 at line 1 column 2";
        check("a", negative, "a must be a non-negative integer, not -1");
        check("a", "invalid type: null, expected a boolean", "a must be true or false, not null");
        check("", "missing field `queue`", "queue is missing");
        check("webhook", "missing field `url`", "webhook.url is missing");
        check("retry.x", "unknown field `x`, expected `a` or `b`", "retry.x is unknown; expected `a` or `b`");
        check("", "duplicate field `to`", "to is specified twice");
    }
}
