//! Authentication of a subject's own agent: the bearer of a subject's credential may set that subject's facts and
//! nothing else.
//!
//! Only the facts handler takes a `SubjectAgent`. Every other handler takes a `Principal`, and a subject's credential
//! never becomes one.

use axum::extract::FromRequestParts;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::{Label, TenantId};
use sha2::{Digest, Sha256};

use crate::error::ApiError;
use crate::extract::header;
use crate::state::AppState;

/// Prefix of every credential, so that people and secret scanners recognize it.
const PREFIX: &str = "wlsub_";

pub(crate) struct SubjectAgent {
    pub(crate) tenant: TenantId,
    pub(crate) subject: Label,
}

/// Generates a credential of 256 random bits. Returns it with the hash to store.
pub(crate) fn new_credential() -> (String, [u8; 32]) {
    let mut random = [0; 32];
    store::db::clock::fill_random(&mut random);
    let token = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(random));
    let hash = hash(&token);
    (token, hash)
}

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

impl FromRequestParts<AppState> for SubjectAgent {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let value = header(&parts.headers, &AUTHORIZATION)?.unwrap_or_default();
        let token = value.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let token = token.map(|(_, token)| token.trim()).filter(|token| token.starts_with(PREFIX));
        let token = token.ok_or_else(ApiError::no_credential)?;
        let found = state.store.subject_of_credential(hash(token)).await?;
        let (tenant, subject) = found.ok_or_else(ApiError::no_credential)?;
        Ok(Self { tenant, subject })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement W8.
    #[test]
    fn agent_credentials_are_long_and_unique() {
        let ((one, hash_of_one), (other, _)) = (new_credential(), new_credential());
        assert!(one.starts_with(PREFIX) && one.len() == PREFIX.len() + 43);
        assert_ne!(one, other);
        assert_eq!(hash(&one), hash_of_one);
    }
}
