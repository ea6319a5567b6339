//! Validation: turns requests into the types of the store. Everything passed to the store goes through here.
//!
//! Text columns never receive control characters: PostgreSQL refuses NUL, and the others are invisible in a listing.

pub(crate) mod access;
pub(crate) mod fleet;
pub(crate) mod query;
pub(crate) mod queue;
pub(crate) mod runtimes;
pub(crate) mod signals;
pub(crate) mod triggers;
pub(crate) mod workflows;

use std::fmt::Display;

use domain::{Label, Name, RetryPolicy};
use wire::RetrySettings;

use crate::error::ApiError;

/// The position of a value in the body, for error messages: `queue`, or `jobs[3].queue`.
#[derive(Clone, Copy)]
pub(crate) enum FieldPath {
    Body,
    Item { of: &'static str, number: usize },
    Member { of: &'static str },
    Operation { write: usize, op: usize },
    Child { write: usize, op: usize, number: usize },
}

impl FieldPath {
    fn field(self, member: impl Display) -> String {
        match self {
            Self::Body => member.to_string(),
            Self::Item { of, number } => format!("{of}[{number}].{member}"),
            Self::Member { of } => format!("{of}.{member}"),
            Self::Operation { write, op } => format!("writes[{write}].ops[{op}].{member}"),
            Self::Child { write, op, number } => format!("writes[{write}].ops[{op}].jobs[{number}].{member}"),
        }
    }

    pub(crate) fn refuse(self, member: impl Display, detail: impl Display) -> ApiError {
        ApiError::invalid_field(self.field(member), detail)
    }

    fn name(self, member: &str, text: &str) -> Result<Name, ApiError> {
        Name::new(text).map_err(|error| self.refuse(member, error))
    }

    /// Validates the name of a queue that users may use (not a reserved one).
    fn queue(self, member: &str, text: &str) -> Result<Name, ApiError> {
        Name::of_queue(text).map_err(|error| self.refuse(member, error))
    }

    pub(crate) fn label(self, member: &str, text: &str) -> Result<Label, ApiError> {
        Label::new(text).map_err(|error| self.refuse(member, error))
    }

    fn optional_name(self, member: &str, text: Option<&str>) -> Result<Option<Name>, ApiError> {
        text.map(|text| self.name(member, text)).transpose()
    }

    /// Validates a subject that users may use (not a reserved one).
    fn optional_subject(self, member: &str, text: Option<&str>) -> Result<Option<Label>, ApiError> {
        text.map(|text| Label::of_subject(text).map_err(|error| self.refuse(member, error))).transpose()
    }

    pub(crate) fn optional_label(self, member: &str, text: Option<&str>) -> Result<Option<Label>, ApiError> {
        text.map(|text| self.label(member, text)).transpose()
    }

    fn between<T>(self, member: &str, value: T, min: T, max: T) -> Result<T, ApiError>
    where
        T: PartialOrd + Copy + Display,
    {
        if value >= min && value <= max {
            return Ok(value);
        }
        Err(self.refuse(member, format_args!("must be from {min} to {max}; it is {value}")))
    }

    pub(crate) fn at_most(self, member: &str, count: usize, max: usize, items: &str) -> Result<(), ApiError> {
        if count <= max {
            return Ok(());
        }
        Err(self.refuse(member, format_args!("may have at most {max} {items}; it has {count}")))
    }

    fn retry(self, member: &str, settings: RetrySettings) -> Result<RetryPolicy, ApiError> {
        let RetrySettings { initial_s, maximum_s, exponent, jitter } = settings;
        RetryPolicy::new(initial_s, maximum_s, exponent, jitter).map_err(|error| {
            let error = error.to_string();
            let (part, detail) = error.split_once(' ').unwrap_or(("", &error));
            self.refuse(format_args!("{member}.{part}"), detail)
        })
    }

    /// Validates free text: any line, but no control characters that a terminal would interpret.
    pub(crate) fn free_text(self, member: &str, text: String, max: usize) -> Result<String, ApiError> {
        if text.len() > max {
            return Err(self.refuse(member, format_args!("may have at most {max} bytes; it has {}", text.len())));
        }
        match text.chars().find(|c| c.is_control() && !matches!(c, '\n' | '\t')) {
            Some(control) => {
                Err(self.refuse(member, format_args!("contains the control character U+{:04X}", control as u32)))
            }
            None => Ok(text),
        }
    }
}
