//! A subject's own agent (W8): whoever shows a subject's credential may set that subject's facts, and nothing else.
//!
//! Its handler takes a `SubjectAgent` and no `Principal`; every other handler takes a `Principal`, which no credential of
//! a subject ever becomes.

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

/// What a subject's credential begins with, so that people and scanners know one when they see it.
const PREFIX: &str = "wlsub_";

pub(crate) struct SubjectAgent {
    pub(crate) tenant: TenantId,
    pub(crate) subject: Label,
}

/// A fresh credential of 256 random bits, and the hash that is stored of it.
pub(crate) fn new_credential() -> (String, [u8; 32]) {
    let mut random = [0; 32];
    store::clock::fill_random(&mut random);
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

    #[test]
    fn w8_credentials_are_long_readable_and_never_the_same() {
        let ((one, hash_of_one), (other, _)) = (new_credential(), new_credential());
        assert!(one.starts_with(PREFIX) && one.len() == PREFIX.len() + 43);
        assert_ne!(one, other);
        assert_eq!(hash(&one), hash_of_one);
    }
}
