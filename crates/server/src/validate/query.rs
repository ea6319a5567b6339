//! Query parameters. All are read as text, so that an error can name the parameter and the problem.

use std::time::Duration;

use domain::limits::{LABEL_BYTES, LONG_POLL_S, PAGE_DEFAULT_ITEMS, PAGE_ITEMS};
use domain::{IdPart, JobState, Label, Name, Time};
use serde::Deserialize;
use store::fleet::subjects::list::SubjectFilter;
use store::queue::list::JobFilter;
use utoipa::IntoParams;
use wire::Timestamp;

use crate::error::ApiError;

/// No parameters: any is refused.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NoParameters {}

/// Filters of runs.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct RunQuery {
    /// `running`, `succeeded`, `failed` or `canceled`.
    pub(crate) state: Option<String>,
    /// Only runs with this name.
    pub(crate) name: Option<String>,
    /// Only runs with this tag.
    pub(crate) tag: Option<String>,
    /// Items per page, 1 to 500 (default: 50).
    #[param(value_type = Option<u32>)]
    pub(crate) limit: Option<String>,
    /// `next_cursor` of the previous page.
    pub(crate) cursor: Option<String>,
}

/// Pagination of a listing.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PageQuery {
    /// Items per page, 1 to 500 (default: 50).
    #[param(value_type = Option<u32>)]
    pub(crate) limit: Option<String>,
    /// `next_cursor` of the previous page.
    pub(crate) cursor: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WaitQuery {
    /// Respond when the job or operation has ended, or after this time, for example `30s` or `500ms`. Maximum: one
    /// minute.
    pub(crate) wait: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DeliveryQuery {
    /// `pending`, `delivering`, `delivered` or `failed`.
    pub(crate) state: Option<String>,
    /// Only deliveries about this job.
    #[param(value_type = Option<String>, format = Uuid)]
    pub(crate) job: Option<String>,
    /// Items per page, 1 to 500 (default: 50).
    #[param(value_type = Option<u32>)]
    pub(crate) limit: Option<String>,
    /// `next_cursor` of the previous page.
    pub(crate) cursor: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct SubjectQuery {
    /// Only subjects of this kind.
    pub(crate) kind: Option<String>,
    /// Prefix of the id.
    pub(crate) prefix: Option<String>,
    /// Items per page, 1 to 500 (default: 50).
    #[param(value_type = Option<u32>)]
    pub(crate) limit: Option<String>,
    /// `next_cursor` of the previous page.
    pub(crate) cursor: Option<String>,
}

impl SubjectQuery {
    pub(crate) fn filter(&self) -> Result<SubjectFilter, ApiError> {
        let kind = name("kind", &self.kind)?.map(|kind| Name::stored(&kind));
        Ok(SubjectFilter { kind, prefix: text("prefix", &self.prefix)? })
    }
}

#[derive(Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct JobQuery {
    /// Only jobs in this state.
    pub(crate) state: Option<String>,
    /// Only jobs of this queue.
    pub(crate) queue: Option<String>,
    /// Only jobs of this kind.
    pub(crate) kind: Option<String>,
    /// Only jobs with this affinity.
    pub(crate) affinity: Option<String>,
    /// Only jobs on this subject.
    pub(crate) subject: Option<String>,
    /// Only jobs of this run.
    pub(crate) run: Option<String>,
    /// Only jobs with this tag.
    pub(crate) tag: Option<String>,
    /// Created at this time or later.
    #[param(value_type = Option<String>, format = DateTime)]
    pub(crate) since: Option<String>,
    /// Created before this time.
    #[param(value_type = Option<String>, format = DateTime)]
    pub(crate) until: Option<String>,
    /// First digits of the id, at least 6; dashes are ignored.
    pub(crate) id_prefix: Option<String>,
    /// Last digits of the id, at least 6; dashes are ignored. The newest jobs are searched.
    pub(crate) id_suffix: Option<String>,
    /// `true`: only jobs that the caller has enqueued directly.
    #[param(value_type = Option<bool>)]
    pub(crate) mine: Option<String>,
    /// Prefix of a kind, tag, unique key or error code; or any part of the newest payloads.
    pub(crate) text: Option<String>,
    /// Items per page, 1 to 500 (default: 50).
    #[param(value_type = Option<u32>)]
    pub(crate) limit: Option<String>,
    /// `next_cursor` of the previous page.
    pub(crate) cursor: Option<String>,
}

impl JobQuery {
    pub(crate) fn filter(&self) -> Result<JobFilter, ApiError> {
        Ok(JobFilter {
            state: state("state", &self.state)?,
            queue: name("queue", &self.queue)?,
            kind: name("kind", &self.kind)?,
            affinity: label("affinity", &self.affinity)?,
            subject: label("subject", &self.subject)?,
            run: label("run", &self.run)?,
            tag: label("tag", &self.tag)?,
            since: time("since", &self.since)?,
            until: time("until", &self.until)?,
            id_prefix: id_part("id_prefix", &self.id_prefix)?,
            id_suffix: id_part("id_suffix", &self.id_suffix)?,
            text: text("text", &self.text)?,
            ..JobFilter::default()
        })
    }
}

fn id_part(parameter: &str, value: &Option<String>) -> Result<Option<IdPart>, ApiError> {
    let refuse = |error| ApiError::invalid_query(parameter, format_args!("{parameter} {error}"));
    value.as_deref().map(|text| IdPart::parse(text).map_err(refuse)).transpose()
}

/// A parameter that is `true` or `false`. Absent is false.
pub(crate) fn flag(parameter: &str, value: &Option<String>) -> Result<bool, ApiError> {
    match value.as_deref() {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(ApiError::invalid_query(parameter, format_args!("{parameter} must be true or false"))),
    }
}

pub(crate) fn state(parameter: &str, value: &Option<String>) -> Result<Option<JobState>, ApiError> {
    let parse = |text: &String| {
        JobState::parse(text).ok_or_else(|| {
            let all: Vec<&str> = JobState::ALL.iter().map(|state| state.as_str()).collect();
            ApiError::invalid_query(parameter, format_args!("{parameter} must be one of {}", all.join(", ")))
        })
    };
    value.as_ref().map(parse).transpose()
}

pub(crate) fn name(parameter: &str, value: &Option<String>) -> Result<Option<String>, ApiError> {
    let refuse = |error| ApiError::invalid_query(parameter, format_args!("{parameter} {error}"));
    value.as_deref().map(|text| Name::new(text).map(|name| name.to_string()).map_err(refuse)).transpose()
}

pub(crate) fn label(parameter: &str, value: &Option<String>) -> Result<Option<String>, ApiError> {
    let refuse = |error| ApiError::invalid_query(parameter, format_args!("{parameter} {error}"));
    value.as_deref().map(|text| Label::new(text).map(|label| label.to_string()).map_err(refuse)).transpose()
}

/// A part of a text, which may begin or end with a space.
pub(super) fn text(parameter: &str, value: &Option<String>) -> Result<Option<String>, ApiError> {
    let Some(text) = value else { return Ok(None) };
    if text.is_empty() || text.len() > LABEL_BYTES || text.chars().any(char::is_control) {
        let detail = format_args!("{parameter} must have 1 to {LABEL_BYTES} bytes without control characters");
        return Err(ApiError::invalid_query(parameter, detail));
    }
    Ok(Some(text.clone()))
}

pub(super) fn time(parameter: &str, value: &Option<String>) -> Result<Option<Time>, ApiError> {
    let Some(text) = value else { return Ok(None) };
    let time: Timestamp = text.parse().map_err(|_| {
        ApiError::invalid_query(parameter, format_args!("{parameter} must be a time like 2026-01-31T12:00:00Z"))
    })?;
    Ok(Some(Time::from_micros(time.as_microsecond())))
}

pub(crate) fn limit(text: Option<&str>) -> Result<usize, ApiError> {
    let Some(text) = text else { return Ok(PAGE_DEFAULT_ITEMS) };
    match text.parse() {
        Ok(limit) if (1..=PAGE_ITEMS).contains(&limit) => Ok(limit),
        _ => Err(ApiError::invalid_query("limit", format_args!("limit must be from 1 to {PAGE_ITEMS}"))),
    }
}

pub(crate) fn wait(text: Option<&str>) -> Result<Duration, ApiError> {
    let Some(text) = text else { return Ok(Duration::ZERO) };
    let (number, unit_s) = match text.strip_suffix("ms") {
        Some(number) => (number, 0.001),
        None => (text.strip_suffix('s').unwrap_or(text), 1.0),
    };
    match number.parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 0.0 => {
            Ok(Duration::from_secs_f64((number * unit_s).min(LONG_POLL_S as f64)))
        }
        _ => Err(ApiError::invalid_query("wait", "wait must be a duration like 30s or 500ms")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_seconds_or_milliseconds_and_at_most_a_minute() {
        let ms = |text| wait(Some(text)).ok().map(|wait| wait.as_millis());
        assert_eq!([ms("30s"), ms("30"), ms("500ms"), ms("0"), ms("1.5s")], [30_000, 30_000, 500, 0, 1_500].map(Some));
        assert_eq!(ms("86400s"), Some(60_000));
        assert_eq!([ms(""), ms("soon"), ms("-1s"), ms("inf"), ms("NaN"), ms("1h"), ms("s")], [None; 7]);
    }
}
