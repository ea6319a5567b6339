//! Signatures of inbound hooks, by the rules of Standard Webhooks.

use axum::http::{HeaderMap, HeaderName};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use domain::Time;
use domain::limits::HOOK_TOLERANCE_S;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::error::ApiError;
use crate::extract::header;

const ID: HeaderName = HeaderName::from_static("webhook-id");
const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
/// Longest id of a message.
const ID_BYTES: usize = 256;

/// The key in a secret that reads `whsec_` and base64, or the text itself.
pub(crate) fn key(secret: &str) -> Option<Vec<u8>> {
    let key = STANDARD.decode(secret.strip_prefix("whsec_")?).ok()?;
    (16..=128).contains(&key.len()).then_some(key)
}

/// The id of a message that was signed with the secret, just now.
pub(crate) fn verified(headers: &HeaderMap, body: &[u8], secret: &str, now: Time) -> Result<String, ApiError> {
    let required = |name: &HeaderName| {
        header(headers, name)?.ok_or_else(|| ApiError::bad_signature(format!("the header {name} is missing")))
    };
    let (id, timestamp, signatures) = (required(&ID)?, required(&TIMESTAMP)?, required(&SIGNATURE)?);
    if id.is_empty() || id.len() > ID_BYTES {
        return Err(ApiError::bad_signature(format!("webhook-id must have 1 to {ID_BYTES} characters")));
    }
    let seconds: i64 =
        timestamp.parse().map_err(|_| ApiError::bad_signature("webhook-timestamp must be whole seconds since 1970"))?;
    if now.ms_since(Time::from_seconds(seconds)).abs() > HOOK_TOLERANCE_S * 1_000 {
        return Err(ApiError::bad_signature("webhook-timestamp is too far from now; set the clocks right"));
    }
    let key = key(secret).ok_or_else(|| ApiError::bad_signature("the hook's secret cannot be used"))?;
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("a key of any length will do");
    for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
        mac.update(part);
    }
    let given = signatures.split(' ').filter_map(|signature| STANDARD.decode(signature.strip_prefix("v1,")?).ok());
    // In constant time; several may be given while a secret is changed.
    if given.into_iter().any(|signature| mac.clone().verify_slice(&signature).is_ok()) {
        return Ok(id.to_owned());
    }
    Err(ApiError::bad_signature("no signature fits; sign `id.timestamp.body` with the hook's secret"))
}
