//! How many triggers led to a request: told by a header that our own calls carry, so that a webhook to ourselves keeps
//! counting and a loop through the outside ends like any other (T5).

use axum::http::{HeaderMap, HeaderName};
use store::Caller;

use crate::auth::Principal;
use crate::error::ApiError;
use crate::extract::header;

/// Sent with every call of a trigger, and to be passed on by whoever calls back because of it.
pub(crate) const DEPTH: HeaderName = HeaderName::from_static("windlass-depth");

/// Who asks, and how many triggers led to it.
pub(crate) fn caller(principal: &Principal, headers: &HeaderMap) -> Result<Caller, ApiError> {
    Ok(Caller::new(&*principal.name).at_depth(of(headers)?))
}

/// 0 where nothing is said.
pub(crate) fn of(headers: &HeaderMap) -> Result<i32, ApiError> {
    let Some(text) = header(headers, &DEPTH)? else { return Ok(0) };
    match text.parse() {
        Ok(depth @ 0..=1_000_000) => Ok(depth),
        _ => Err(ApiError::invalid_header("Windlass-Depth", "must be a whole number from 0")),
    }
}
