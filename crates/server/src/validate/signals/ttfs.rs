//! Validation of time-to-first-signal events.

use domain::limits::{REASON_BYTES, TTFS_DAYS, TTFS_EVENTS, TTFS_MAX_MS, TTFS_METADATA_BYTES};
use domain::queue::settings::PHASES;
use domain::signals::signal::SignalKind;
use domain::signals::ttfs::{EVENT_TYPES, SIGNAL_SOURCES, SURFACES};
use domain::{JobId, Time};
use serde::Deserialize;
use store::signals::ttfs::list::TtfsFilter;
use store::signals::ttfs::record::TtfsEvent;
use utoipa::IntoParams;
use uuid::Uuid;
use wire::TtfsEvents;

use crate::error::ApiError;
use crate::validate::FieldPath;
use crate::validate::query;

pub(crate) fn events(request: TtfsEvents, now: Time) -> Result<Vec<TtfsEvent>, ApiError> {
    FieldPath::Body.at_most("events", request.events.len(), TTFS_EVENTS, "events")?;
    let check = |(number, event)| one(FieldPath::Item { of: "events", number }, event, now);
    request.events.into_iter().enumerate().map(check).collect()
}

fn one(path: FieldPath, event: wire::TtfsEvent, now: Time) -> Result<TtfsEvent, ApiError> {
    let free_text =
        |member: &str, text: Option<String>| text.map(|text| path.free_text(member, text, REASON_BYTES)).transpose();
    let one_of = |member: &str, text: String, all: &[&str]| match all.contains(&text.as_str()) {
        true => Ok(text),
        false => Err(path.refuse(member, format_args!("must be one of {}", all.join(", ")))),
    };
    let optional_one_of =
        |member: &str, text: Option<String>, all: &[&str]| text.map(|text| one_of(member, text, all)).transpose();
    let at = event.at.map(|at| Time::from_micros(at.as_microsecond()));
    if let Some(at) = at {
        let age_s = now.ms_since(at) / 1_000;
        if !(-300..=TTFS_DAYS * 86_400).contains(&age_s) {
            return Err(path.refuse("at", format_args!("must be within the last {TTFS_DAYS} days")));
        }
    }
    if event.metadata.as_ref().is_some_and(|metadata| metadata.get().len() > TTFS_METADATA_BYTES) {
        return Err(path.refuse("metadata", format_args!("may have at most {TTFS_METADATA_BYTES} bytes of JSON")));
    }
    Ok(TtfsEvent {
        id: event.event_id,
        at,
        job: event.job_id,
        surface: one_of("surface", event.surface, &SURFACES)?,
        event_type: one_of("event_type", event.event_type, &EVENT_TYPES)?,
        ttfs_ms: path.between("ttfs_ms", event.ttfs_ms, 0, TTFS_MAX_MS)?,
        cache_hit: event.cache_hit.unwrap_or(false),
        signal_source: optional_one_of("signal_source", event.signal_source, &SIGNAL_SOURCES)?,
        kind: optional_one_of("kind", event.kind, &SignalKind::ALL.map(SignalKind::as_str))?,
        phase: optional_one_of("phase", event.phase, &PHASES)?,
        run: free_text("run", event.run)?,
        network_state: free_text("network_state", event.network_state)?,
        device: free_text("device", event.device)?,
        release: free_text("release", event.release)?,
        correlation_id: free_text("correlation_id", event.correlation_id)?,
        trace_id: free_text("trace_id", event.trace_id)?,
        span_id: free_text("span_id", event.span_id)?,
        error_code: free_text("error_code", event.error_code)?,
        error_message: free_text("error_message", event.error_message)?,
        metadata: event.metadata.map(|metadata| metadata.get().to_owned()),
    })
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventsQuery {
    /// Only events of this job.
    #[param(value_type = Option<Uuid>)]
    job_id: Option<String>,
    /// Only events with this error code.
    error_code: Option<String>,
    /// At this time or later.
    #[param(value_type = Option<String>, format = DateTime)]
    since: Option<String>,
    /// Items per page, 1 to 500 (default: 50).
    #[param(value_type = Option<u32>)]
    pub(crate) limit: Option<String>,
    /// `next_cursor` of the previous page.
    pub(crate) cursor: Option<String>,
}

impl EventsQuery {
    pub(crate) fn filter(&self) -> Result<TtfsFilter, ApiError> {
        let id =
            |text: &str| Uuid::try_parse(text).map_err(|_| ApiError::invalid_query("job_id", "job_id must be a UUID"));
        Ok(TtfsFilter {
            job: self.job_id.as_deref().map(id).transpose()?.map(JobId::new),
            error_code: query::text("error_code", &self.error_code)?,
            since: query::time("since", &self.since)?,
        })
    }
}
