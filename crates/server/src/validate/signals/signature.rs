//! Validation of signatures.

use domain::Time;
use domain::limits::{ERROR_CODE_BYTES, REASON_BYTES, WAIT_MAX_S};
use domain::signals::signature::{Matcher, PatternError, SignaturePattern};
use store::signals::signatures::SignatureOutcome as StoredOutcome;
use store::signals::signatures::change::{NewSignature, SignatureChange};
use wire::{SignatureOutcome, SignatureRequest, SignatureUpdate, Timestamp};

use crate::error::ApiError;
use crate::validate::FieldPath;

/// Default confidence of a signature.
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

pub(crate) fn change(update: SignatureUpdate, by: String) -> Result<SignatureChange, ApiError> {
    Ok(SignatureChange {
        matcher: update.pattern.map(matcher).transpose()?,
        outcome: update.outcome.map(outcome).transpose()?,
        confidence: confidence(update.confidence)?,
        enabled: update.enabled,
        muted: update.muted,
        confirmed: update.confirmed,
        fixed: update.fixed,
        expires_at: update.expires_at.map(|at| Some(time(at))),
        by,
    })
}

fn time(at: Timestamp) -> Time {
    Time::from_micros(at.as_microsecond())
}

fn confidence(confidence: Option<f64>) -> Result<Option<f64>, ApiError> {
    confidence.map(|confidence| FieldPath::Body.between("confidence", confidence, 0.0, 1.0)).transpose()
}

fn matcher(pattern: wire::SignaturePattern) -> Result<Matcher, ApiError> {
    let path = FieldPath::Body;
    let code =
        pattern.error_code.map(|code| path.free_text("pattern.error_code", code, ERROR_CODE_BYTES)).transpose()?;
    let pattern = SignaturePattern {
        phase: path.optional_name("pattern.phase", pattern.phase.as_deref())?.map(|phase| phase.to_string()),
        error_code: code,
        kind: path.optional_name("pattern.kind", pattern.kind.as_deref())?.map(|kind| kind.to_string()),
        subject_pattern: pattern.subject_pattern,
    };
    pattern.matcher().map_err(|error| match error {
        PatternError::Empty => path.refuse("pattern", PatternError::Empty),
        PatternError::Regex(reason) => path.refuse("pattern.subject_pattern", reason),
    })
}

fn outcome(outcome: SignatureOutcome) -> Result<StoredOutcome, ApiError> {
    let path = FieldPath::Body;
    let free_text = |member: &str, text: Option<String>| {
        text.map(|text| path.free_text(&format!("outcome.{member}"), text, REASON_BYTES)).transpose()
    };
    let seconds = |member: &str, value: Option<f64>| {
        value.map(|value| path.between(&format!("outcome.{member}"), value, 0.0, WAIT_MAX_S as f64)).transpose()
    };
    let url =
        outcome.remediation_url.map(|url| path.free_text("outcome.remediation_url", url, URL_BYTES)).transpose()?;
    // A second slash would name another host.
    let is_path = |url: &str| url.starts_with('/') && !url[1..].starts_with(['/', '\\']);
    if url.as_deref().is_some_and(|url| !url.starts_with("https://") && !url.starts_with("http://") && !is_path(url)) {
        let detail = "must begin with https:// or http://, or be a path of this server";
        return Err(path.refuse("outcome.remediation_url", detail));
    }
    Ok(StoredOutcome {
        likely_cause: free_text("likely_cause", outcome.likely_cause)?,
        mttr_p50_s: seconds("mttr_p50_seconds", outcome.mttr_p50_seconds)?,
        mttr_p95_s: seconds("mttr_p95_seconds", outcome.mttr_p95_seconds)?,
        suggested_action: free_text("suggested_action", outcome.suggested_action)?,
        remediation_url: url,
    })
}
