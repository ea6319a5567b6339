//! Signatures as people write them.

use domain::Time;
use domain::limits::{ERROR_CODE_BYTES, REASON_BYTES, WAIT_S_MAX};
use domain::signature::{Matcher, Pattern, PatternError};
use store::signatures::SignatureOutcome as Known;
use store::signatures::change::{NewSignature, SignatureChange};
use wire::{SignatureOutcome, SignaturePattern, SignatureRequest, SignatureUpdate, Timestamp};

use super::Place;
use crate::error::ApiError;

/// How sure a signature is when nobody says.
const CONFIDENCE: f64 = 0.5;
const URL_BYTES: usize = 2_048;

pub(crate) fn new(request: SignatureRequest, by: String) -> Result<NewSignature, ApiError> {
    Ok(NewSignature {
        matcher: matcher(request.pattern)?,
        outcome: outcome(request.outcome)?,
        confidence: confidence(request.confidence)?.unwrap_or(CONFIDENCE),
        expires_at: request.expires_at.map(time),
        by,
    })
}

pub(crate) fn change(update: SignatureUpdate) -> Result<SignatureChange, ApiError> {
    Ok(SignatureChange {
        matcher: update.pattern.map(matcher).transpose()?,
        outcome: update.outcome.map(outcome).transpose()?,
        confidence: confidence(update.confidence)?,
        enabled: update.enabled,
        muted: update.muted,
        confirmed: update.confirmed,
        fixed: update.fixed,
        expires_at: update.expires_at.map(|at| Some(time(at))),
    })
}

fn time(at: Timestamp) -> Time {
    Time::from_micros(at.as_microsecond())
}

fn confidence(confidence: Option<f64>) -> Result<Option<f64>, ApiError> {
    confidence.map(|confidence| Place::Body.between("confidence", confidence, 0.0, 1.0)).transpose()
}

fn matcher(pattern: SignaturePattern) -> Result<Matcher, ApiError> {
    let place = Place::Body;
    let code = pattern.error_code.map(|code| place.words("pattern.error_code", code, ERROR_CODE_BYTES)).transpose()?;
    let pattern = Pattern {
        phase: place.opt_name("pattern.phase", pattern.phase.as_deref())?.map(|phase| phase.to_string()),
        error_code: code,
        kind: place.opt_name("pattern.kind", pattern.kind.as_deref())?.map(|kind| kind.to_string()),
        subject_pattern: pattern.subject_pattern,
    };
    pattern.matcher().map_err(|error| match error {
        PatternError::Empty => place.refuse("pattern", PatternError::Empty),
        PatternError::Regex(reason) => place.refuse("pattern.subject_pattern", reason),
    })
}

fn outcome(outcome: SignatureOutcome) -> Result<Known, ApiError> {
    let place = Place::Body;
    let words = |member: &str, text: Option<String>| {
        text.map(|text| place.words(&format!("outcome.{member}"), text, REASON_BYTES)).transpose()
    };
    let seconds = |member: &str, value: Option<f64>| {
        value.map(|value| place.between(&format!("outcome.{member}"), value, 0.0, WAIT_S_MAX as f64)).transpose()
    };
    let url = outcome.remediation_url.map(|url| place.words("outcome.remediation_url", url, URL_BYTES)).transpose()?;
    if url.as_deref().is_some_and(|url| !url.starts_with("https://") && !url.starts_with("http://")) {
        return Err(place.refuse("outcome.remediation_url", "must begin with https:// or http://"));
    }
    Ok(Known {
        likely_cause: words("likely_cause", outcome.likely_cause)?,
        mttr_p50_s: seconds("mttr_p50_seconds", outcome.mttr_p50_seconds)?,
        mttr_p95_s: seconds("mttr_p95_seconds", outcome.mttr_p95_seconds)?,
        suggested_action: words("suggested_action", outcome.suggested_action)?,
        remediation_url: url,
    })
}
