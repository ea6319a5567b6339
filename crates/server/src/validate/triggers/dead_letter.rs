//! Validation of dead-letter filters and resolutions.

use domain::limits::{LABEL_BYTES, REASON_BYTES};
use domain::{JobId, Resolution, Time, TriggerId};
use serde::Deserialize;
use store::triggers::dead_letters::list::DeadLetterFilter;
use utoipa::IntoParams;
use uuid::Uuid;
use wire::Timestamp;

use crate::error::ApiError;
use crate::validate::FieldPath;
use crate::validate::query;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DeadLetterQuery {
    /// `false` for unresolved dead letters, `true` for resolved ones.
    #[param(value_type = Option<bool>)]
    pub(crate) resolved: Option<String>,
    /// Only letters from this source: `job`, or the source of the event.
    pub(crate) source: Option<String>,
    /// Only letters of this trigger.
    #[param(value_type = Option<Uuid>)]
    pub(crate) trigger_id: Option<String>,
    /// Only letters of this job.
    #[param(value_type = Option<Uuid>)]
    pub(crate) job_id: Option<String>,
    /// Only letters of jobs of this queue.
    pub(crate) queue: Option<String>,
    /// Only letters of jobs of this kind.
    pub(crate) kind: Option<String>,
    /// Only letters whose last error has this code.
    pub(crate) error_code: Option<String>,
    /// Created at this time or later.
    #[param(value_type = Option<String>, format = DateTime)]
    pub(crate) since: Option<String>,
    /// Created before this time.
    #[param(value_type = Option<String>, format = DateTime)]
    pub(crate) until: Option<String>,
    /// Items per page, 1 to 500 (default: 50).
    #[param(value_type = Option<u32>)]
    pub(crate) limit: Option<String>,
    /// `next_cursor` of the previous page.
    pub(crate) cursor: Option<String>,
}

/// `DeadLetterQuery` without pagination.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct CountQuery {
    /// `false` for unresolved dead letters, `true` for resolved ones.
    #[param(value_type = Option<bool>)]
    resolved: Option<String>,
    /// Only letters from this source: `job`, or the source of the event.
    source: Option<String>,
    /// Only letters of this trigger.
    #[param(value_type = Option<Uuid>)]
    trigger_id: Option<String>,
    /// Only letters of this job.
    #[param(value_type = Option<Uuid>)]
    job_id: Option<String>,
    /// Only letters of jobs of this queue.
    queue: Option<String>,
    /// Only letters of jobs of this kind.
    kind: Option<String>,
    /// Only letters whose last error has this code.
    error_code: Option<String>,
    /// Created at this time or later.
    #[param(value_type = Option<String>, format = DateTime)]
    since: Option<String>,
    /// Created before this time.
    #[param(value_type = Option<String>, format = DateTime)]
    until: Option<String>,
}

impl DeadLetterQuery {
    pub(crate) fn filter(&self) -> Result<DeadLetterFilter, ApiError> {
        Ok(DeadLetterFilter {
            resolved: flag("resolved", self.resolved.as_deref())?,
            source: query::text("source", &self.source)?,
            trigger: id("trigger_id", self.trigger_id.as_deref())?.map(TriggerId::new),
            job: id("job_id", self.job_id.as_deref())?.map(JobId::new),
            queue: query::text("queue", &self.queue)?,
            kind: query::text("kind", &self.kind)?,
            error_code: query::text("error_code", &self.error_code)?,
            since: query::time("since", &self.since)?,
            until: query::time("until", &self.until)?,
        })
    }
}

impl CountQuery {
    pub(crate) fn filter(self) -> Result<DeadLetterFilter, ApiError> {
        let Self { resolved, source, trigger_id, job_id, queue, kind, error_code, since, until } = self;
        let (limit, cursor) = (None, None);
        DeadLetterQuery { resolved, source, trigger_id, job_id, queue, kind, error_code, since, until, limit, cursor }
            .filter()
    }
}

fn flag(parameter: &str, text: Option<&str>) -> Result<Option<bool>, ApiError> {
    match text {
        None => Ok(None),
        Some("true") => Ok(Some(true)),
        Some("false") => Ok(Some(false)),
        Some(_) => Err(ApiError::invalid_query(parameter, format_args!("{parameter} must be true or false"))),
    }
}

fn id(parameter: &str, text: Option<&str>) -> Result<Option<Uuid>, ApiError> {
    let parse = |text: &str| Uuid::try_parse(text);
    let refuse = |_| ApiError::invalid_query(parameter, format_args!("{parameter} must be an id"));
    text.map(parse).transpose().map_err(refuse)
}

/// The filter of a bulk replay.
pub(crate) fn filter(filter: wire::DeadLetterFilter) -> Result<DeadLetterFilter, ApiError> {
    let text = |member: &str, text: Option<String>| -> Result<Option<String>, ApiError> {
        match text {
            Some(text) if text.is_empty() || text.len() > LABEL_BYTES || text.chars().any(char::is_control) => {
                let detail = format_args!("must have 1 to {LABEL_BYTES} bytes without control characters");
                Err(ApiError::invalid_field(format!("filter.{member}"), detail))
            }
            text => Ok(text),
        }
    };
    let time = |at: Option<Timestamp>| at.map(|at| Time::from_micros(at.as_microsecond()));
    Ok(DeadLetterFilter {
        resolved: Some(false),
        source: text("source", filter.source)?,
        trigger: filter.trigger_id.map(TriggerId::new),
        job: filter.job_id.map(JobId::new),
        queue: text("queue", filter.queue)?,
        kind: text("kind", filter.kind)?,
        error_code: text("error_code", filter.error_code)?,
        since: time(filter.since),
        until: time(filter.until),
    })
}

/// The resolutions that a user may set. `replayed` is set by a replay only.
pub(crate) fn resolution(text: &str) -> Result<Resolution, ApiError> {
    match Resolution::parse(text) {
        Some(resolution @ (Resolution::Ignored | Resolution::HandledByScript)) => Ok(resolution),
        Some(Resolution::Replayed) => {
            Err(ApiError::invalid_field("resolution", "cannot be set to replayed; POST to /replay instead"))
        }
        _ => Err(ApiError::invalid_field("resolution", "must be ignored or handled_by_script")),
    }
}

pub(crate) fn note(note: Option<String>) -> Result<Option<String>, ApiError> {
    note.map(|note| FieldPath::Body.free_text("note", note, REASON_BYTES)).transpose()
}
