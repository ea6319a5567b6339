//! Verifies signatures of incoming webhooks (Standard Webhooks). Called by the hook route and the validation of
//! triggers.

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
/// Maximum length of a message id.
const ID_BYTES: usize = 256;

/// Decodes the key of a secret of the form `whsec_<base64>`. None if it is malformed.
pub(crate) fn key(secret: &str) -> Option<Vec<u8>> {
    let key = STANDARD.decode(secret.strip_prefix("whsec_")?).ok()?;
    (16..=128).contains(&key.len()).then_some(key)
}

/// Verifies the signature and the timestamp of a message. Returns the message id.
pub(crate) fn verify(headers: &HeaderMap, body: &[u8], secret: &str, now: Time) -> Result<String, ApiError> {
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
        return Err(ApiError::bad_signature(
            "webhook-timestamp differs too much from the server's time; synchronize the clocks",
        ));
    }
    let key = key(secret).ok_or_else(|| ApiError::bad_signature("the hook's secret is invalid"))?;
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("HMAC accepts keys of any length");
    for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
        mac.update(part);
    }
    let signatures = signatures.split(' ').filter_map(|signature| STANDARD.decode(signature.strip_prefix("v1,")?).ok());
    // Compared in constant time. Several signatures may be sent while a secret is rotated.
    if signatures.into_iter().any(|signature| mac.clone().verify_slice(&signature).is_ok()) {
        return Ok(id.to_owned());
    }
    Err(ApiError::bad_signature("no signature matches; sign `id.timestamp.body` with the hook's secret"))
}
