//! From what came over the wire to what the store takes. Everything the store is given has passed here.
//!
//! Texts that a database column holds as text never carry control characters: PostgreSQL refuses NUL, and the others
//! hide in a listing.

pub(crate) mod dead_letter;
pub(crate) mod job;
pub(crate) mod outcome;
pub(crate) mod query;
pub(crate) mod queue;
pub(crate) mod runtime;
pub(crate) mod signal;
pub(crate) mod signature;
pub(crate) mod subject;
pub(crate) mod token;
pub(crate) mod trigger;
pub(crate) mod ttfs;
pub(crate) mod webhook;
pub(crate) mod worker;

use std::fmt::Display;

use domain::{Label, Name, RetryPolicy};
use wire::RetrySettings;

use crate::error::ApiError;

/// Where in the body a value stands: `queue`, or `jobs[3].queue`.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    Body,
    Item { of: &'static str, number: usize },
    Member { of: &'static str },
}

impl Place {
    fn field(self, member: impl Display) -> String {
        match self {
            Self::Body => member.to_string(),
            Self::Item { of, number } => format!("{of}[{number}].{member}"),
            Self::Member { of } => format!("{of}.{member}"),
        }
    }

    fn refuse(self, member: impl Display, detail: impl Display) -> ApiError {
        ApiError::invalid_field(self.field(member), detail)
    }

    fn name(self, member: &str, text: &str) -> Result<Name, ApiError> {
        Name::new(text).map_err(|error| self.refuse(member, error))
    }

    /// A queue for jobs or workers of the caller's own.
    fn queue(self, member: &str, text: &str) -> Result<Name, ApiError> {
        Name::of_queue(text).map_err(|error| self.refuse(member, error))
    }

    fn label(self, member: &str, text: &str) -> Result<Label, ApiError> {
        Label::new(text).map_err(|error| self.refuse(member, error))
    }

    fn opt_name(self, member: &str, text: Option<&str>) -> Result<Option<Name>, ApiError> {
        text.map(|text| self.name(member, text)).transpose()
    }

    /// A subject for work of the caller's own.
    fn opt_subject(self, member: &str, text: Option<&str>) -> Result<Option<Label>, ApiError> {
        text.map(|text| Label::of_subject(text).map_err(|error| self.refuse(member, error))).transpose()
    }

    fn opt_label(self, member: &str, text: Option<&str>) -> Result<Option<Label>, ApiError> {
        text.map(|text| self.label(member, text)).transpose()
    }

    fn between<T>(self, member: &str, value: T, least: T, most: T) -> Result<T, ApiError>
    where
        T: PartialOrd + Copy + Display,
    {
        if value >= least && value <= most {
            return Ok(value);
        }
        Err(self.refuse(member, format_args!("must be from {least} to {most}; it is {value}")))
    }

    pub(crate) fn at_most(self, member: &str, count: usize, most: usize, what: &str) -> Result<(), ApiError> {
        if count <= most {
            return Ok(());
        }
        Err(self.refuse(member, format_args!("may have at most {most} {what}; it has {count}")))
    }

    fn retry(self, member: &str, settings: RetrySettings) -> Result<RetryPolicy, ApiError> {
        let RetrySettings { initial_s, maximum_s, exponent, jitter } = settings;
        RetryPolicy::new(initial_s, maximum_s, exponent, jitter).map_err(|error| {
            let error = error.to_string();
            let (part, detail) = error.split_once(' ').unwrap_or(("", &error));
            self.refuse(format_args!("{member}.{part}"), detail)
        })
    }

    /// Words for people: any line, but nothing that a terminal or a page would obey.
    fn words(self, member: &str, text: String, most: usize) -> Result<String, ApiError> {
        if text.len() > most {
            return Err(self.refuse(member, format_args!("may have at most {most} bytes; it has {}", text.len())));
        }
        match text.chars().find(|c| c.is_control() && !matches!(c, '\n' | '\t')) {
            Some(odd) => Err(self.refuse(member, format_args!("holds the control character U+{:04X}", odd as u32))),
            None => Ok(text),
        }
    }
}
