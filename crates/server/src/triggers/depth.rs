//! Trigger depth: the number of triggers that led to a request. Outgoing calls send it in a header, so that a webhook
//! to this server keeps counting and an external loop is stopped like an internal one.

use axum::http::{HeaderMap, HeaderName};
use store::Caller;

use crate::access::auth::Principal;
use crate::error::ApiError;
use crate::extract::header;

/// Sent with every call of a trigger. A receiver that calls back must pass it on.
pub(crate) const DEPTH: HeaderName = HeaderName::from_static("windlass-depth");

/// Returns the principal and trigger depth of a request.
pub(crate) fn caller(principal: &Principal, headers: &HeaderMap) -> Result<Caller, ApiError> {
    Ok(Caller::new(&*principal.name).at_depth(of(headers)?))
}

/// Returns the trigger depth of a request. 0 without the header.
pub(crate) fn of(headers: &HeaderMap) -> Result<i32, ApiError> {
    let Some(text) = header(headers, &DEPTH)? else { return Ok(0) };
    match text.parse() {
        Ok(depth @ 0..=1_000_000) => Ok(depth),
        _ => Err(ApiError::invalid_header("Windlass-Depth", "must be a whole number from 0")),
    }
}
