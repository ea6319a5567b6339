//! What is wrong with a filter or a target, in the words of the API: where it is, and what to put there. A parser's own
//! message has no path and names types of this program.

use std::fmt::Display;

use serde::de::{Deserialize, Deserializer};

/// A member that cannot be taken, and why.
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

    /// The same fault, of something that stands in this member.
    pub fn within(self, member: &str) -> Self {
        Self { field: joined(member, &self.field), ..self }
    }

    fn of_message(path: &str, message: &str) -> Self {
        let message = message.rsplit_once(" at line ").map_or(message, |(message, _)| message);
        let named = message.split('`').nth(1).unwrap_or_default();
        // A member that is not known is in its path, one that is missing is not.
        let member = || match path.rsplit('.').next() {
            Some(last) if last == named => path.to_owned(),
            _ => joined(path, named),
        };
        if message.starts_with("missing field") {
            return Self::new(member(), "is missing");
        }
        if message.starts_with("duplicate field") {
            return Self::new(member(), "is given twice");
        }
        if message.starts_with("unknown field") {
            let expected = message.split_once(", ").map_or("leave it out", |(_, expected)| expected);
            return Self::new(member(), format!("is not known; {expected}"));
        }
        let mismatch = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "));
        match mismatch.and_then(|mismatch| mismatch.rsplit_once(", expected ")) {
            Some((got, wanted)) => Self::new(path, format!("must be {}, not {}", wanted_words(wanted), got_words(got))),
            None => Self::new(path, format!("cannot be taken: {message}")),
        }
    }
}

/// Reads what a parser holds; a fault is told with the path to it.
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

fn joined(outer: &str, inner: &str) -> String {
    match (outer, inner) {
        ("", only) | (only, "") => only.to_owned(),
        (outer, inner) => format!("{outer}.{inner}"),
    }
}

fn wanted_words(wanted: &str) -> &str {
    match wanted {
        "i8" | "i16" | "i32" | "i64" => "a whole number",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number from 0 on",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        wanted if wanted == "a map" || wanted.starts_with("struct ") => "an object",
        wanted => wanted,
    }
}

/// What was found. A text is not said again: it may be a secret in the wrong place.
fn got_words(got: &str) -> &str {
    match got.split(' ').next() {
        Some("string" | "character") => "a string",
        Some("map") => "an object",
        Some("sequence") => "a list",
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
    fn faults_are_told_in_the_words_of_the_api() {
        check("queue", "invalid type: integer `5`, expected a string", "queue must be a string, not 5");
        let text = "invalid type: string \"a, expected b\", expected struct RetryTemplate";
        check("retry", text, "retry must be an object, not a string");
        check("tags", "invalid type: map, expected a sequence", "tags must be a list, not an object");
        let negative = "invalid value: integer `-1`, expected u64 at line 1 column 2";
        check("a", negative, "a must be a whole number from 0 on, not -1");
        check("a", "invalid type: null, expected a boolean", "a must be true or false, not null");
        check("", "missing field `queue`", "queue is missing");
        check("webhook", "missing field `url`", "webhook.url is missing");
        check("retry.x", "unknown field `x`, expected `a` or `b`", "retry.x is not known; expected `a` or `b`");
        check("", "duplicate field `to`", "to is given twice");
    }
}
