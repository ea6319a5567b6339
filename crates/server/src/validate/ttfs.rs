//! Events of the time to first signal.

use domain::Time;
use domain::limits::{REASON_BYTES, TTFS_DAYS, TTFS_EVENTS, TTFS_METADATA_BYTES, TTFS_MS_MAX};
use domain::ttfs::{EVENT_TYPES, SURFACES};
use store::ttfs::record::TtfsEvent;
use wire::TtfsEvents;

use super::Place;
use crate::error::ApiError;

pub(crate) fn events(request: TtfsEvents, now: Time) -> Result<Vec<TtfsEvent>, ApiError> {
    Place::Body.at_most("events", request.events.len(), TTFS_EVENTS, "events")?;
    let check = |(number, event)| one(Place::Item { of: "events", number }, event, now);
    request.events.into_iter().enumerate().map(check).collect()
}

fn one(place: Place, event: wire::TtfsEvent, now: Time) -> Result<TtfsEvent, ApiError> {
    let words =
        |member: &str, text: Option<String>| text.map(|text| place.words(member, text, REASON_BYTES)).transpose();
    let one_of = |member: &str, text: String, all: &[&str]| match all.contains(&text.as_str()) {
        true => Ok(text),
        false => Err(place.refuse(member, format_args!("must be one of {}", all.join(", ")))),
    };
    let at = event.at.map(|at| Time::from_micros(at.as_microsecond()));
    if let Some(at) = at {
        let age_s = now.ms_since(at) / 1_000;
        if !(-300..=TTFS_DAYS * 86_400).contains(&age_s) {
            return Err(place.refuse("at", format_args!("must lie within the last {TTFS_DAYS} days")));
        }
    }
    if event.metadata.as_ref().is_some_and(|metadata| metadata.get().len() > TTFS_METADATA_BYTES) {
        return Err(place.refuse("metadata", format_args!("may have at most {TTFS_METADATA_BYTES} bytes of JSON")));
    }
    Ok(TtfsEvent {
        id: event.event_id,
        at,
        job: event.job_id,
        surface: one_of("surface", event.surface, &SURFACES)?,
        event_type: one_of("event_type", event.event_type, &EVENT_TYPES)?,
        ttfs_ms: event.ttfs_ms.map(|ms| place.between("ttfs_ms", ms, 0, TTFS_MS_MAX)).transpose()?,
        cache_hit: event.cache_hit.unwrap_or(false),
        signal_source: words("signal_source", event.signal_source)?,
        kind: words("kind", event.kind)?,
        phase: words("phase", event.phase)?,
        run: words("run", event.run)?,
        network_state: words("network_state", event.network_state)?,
        device: words("device", event.device)?,
        release: words("release", event.release)?,
        correlation_id: words("correlation_id", event.correlation_id)?,
        trace_id: words("trace_id", event.trace_id)?,
        span_id: words("span_id", event.span_id)?,
        error_code: words("error_code", event.error_code)?,
        error_message: words("error_message", event.error_message)?,
        metadata: event.metadata.map(|metadata| metadata.get().to_owned()),
    })
}
