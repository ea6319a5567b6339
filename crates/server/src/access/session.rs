//! Dashboard sessions: a user signs in with a token once, and the browser then sends a cookie instead.
//!
//! The cookie holds a random secret and its signature, so a forged cookie is refused without a database query. The
//! database stores only the secret's hash. The cookie is HttpOnly and SameSite=Lax (a link from another site opens the
//! page, a POST from there carries no cookie), expires with its token, and is replaced every hour. A request that
//! changes something must come from a page of this origin (see `cross_site`), and no GET changes anything.

use std::fmt;

use axum::http::header::COOKIE;
use axum::http::{HeaderMap, HeaderValue};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::limits::SESSION_IDLE_S;
use ring::hmac;
use sha2::{Digest, Sha256};
use store::db::clock::fill_random;

const NAME: &str = "windlass_session";
const SECRET_BYTES: usize = 32;

/// Keys that sign session cookies. Every node needs the same keys: a node accepts only cookies signed with a key it
/// has.
#[derive(Clone)]
pub struct CookieKey {
    /// The first key signs. Any key verifies.
    keys: Vec<hmac::Key>,
    /// Sets the cookie's `Secure` attribute.
    secure: bool,
}

impl fmt::Debug for CookieKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CookieKey")
    }
}

/// The secret of a session, held by the browser.
pub(crate) struct SessionSecret([u8; SECRET_BYTES]);

impl SessionSecret {
    pub(crate) fn new() -> Self {
        let mut secret = [0; SECRET_BYTES];
        fill_random(&mut secret);
        Self(secret)
    }

    /// The hash that the database stores.
    pub(crate) fn hash(&self) -> [u8; 32] {
        Sha256::new().chain_update(b"windlass session").chain_update(self.0).finalize().into()
    }
}

impl CookieKey {
    /// Signs with the first secret and accepts signatures of any of them. `secrets` must not be empty.
    pub fn new(secrets: &[[u8; SECRET_BYTES]]) -> Self {
        let keys = secrets.iter().map(|secret| hmac::Key::new(hmac::HMAC_SHA256, secret)).collect();
        Self { keys, secure: false }
    }

    /// A random key, valid until this process ends.
    pub fn for_this_process() -> Self {
        let mut secret = [0; SECRET_BYTES];
        fill_random(&mut secret);
        Self::new(&[secret])
    }

    /// Marks cookies `Secure`: browsers then send them over TLS only.
    pub fn over_tls_only(self) -> Self {
        Self { secure: true, ..self }
    }

    pub(crate) fn cookie(&self, secret: &SessionSecret) -> HeaderValue {
        let signature = hmac::sign(&self.keys[0], &secret.0);
        let value = format!("{}.{}", URL_SAFE_NO_PAD.encode(secret.0), URL_SAFE_NO_PAD.encode(signature));
        self.header(&value, SESSION_IDLE_S)
    }

    /// Returns a `Set-Cookie` value that deletes the cookie.
    pub(crate) fn no_cookie(&self) -> HeaderValue {
        self.header("", 0)
    }

    fn header(&self, value: &str, max_age_s: i64) -> HeaderValue {
        let secure = if self.secure { "; Secure" } else { "" };
        let text = format!("{NAME}={value}; Path=/; HttpOnly; SameSite=Lax; Max-Age={max_age_s}{secure}");
        HeaderValue::from_str(&text).expect("base64 is ASCII")
    }

    /// Returns the session of the request's cookie if its signature is valid.
    pub(crate) fn read(&self, headers: &HeaderMap) -> Option<SessionSecret> {
        let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut matching = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|cookie| {
            let (name, value) = cookie.trim().split_once('=')?;
            (name == NAME).then_some(value)
        });
        let (secret, signature) = matching.next()?.split_once('.')?;
        let secret: [u8; SECRET_BYTES] = URL_SAFE_NO_PAD.decode(secret).ok()?.try_into().ok()?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        let is_valid = self.keys.iter().any(|key| hmac::verify(key, &secret, &signature).is_ok());
        is_valid.then_some(SessionSecret(secret))
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderName;

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().expect("visible"))).collect()
    }

    /// Requirement X7.
    #[test]
    fn a_changed_or_foreign_session_cookie_is_rejected() {
        let key = CookieKey::for_this_process();
        let secret = SessionSecret::new();
        let cookie = key.cookie(&secret);
        let cookie = cookie.to_str().expect("ASCII").split(';').next().expect("a value").to_owned();
        let read = |key: &CookieKey, cookie: &str| key.read(&headers(&[("cookie", cookie)])).map(|read| read.hash());
        assert_eq!(read(&key, &cookie), Some(secret.hash()));
        assert_eq!(read(&key, &format!("a=b; {cookie}; c=d")), Some(secret.hash()));
        assert_eq!(read(&CookieKey::for_this_process(), &cookie), None);
        let (old, new) = ([1; SECRET_BYTES], [2; SECRET_BYTES]);
        let before = CookieKey::new(&[old]).over_tls_only().cookie(&secret);
        let before = before.to_str().expect("ASCII");
        assert!(before.ends_with("; Secure"), "{before}");
        let before = before.split(';').next().expect("a value");
        assert_eq!(read(&CookieKey::new(&[new, old]), before), Some(secret.hash()), "until the old key is removed");
        assert_eq!(read(&CookieKey::new(&[new]), before), None);
        for index in cookie.len() - 80..cookie.len() {
            let mut changed = cookie.clone().into_bytes();
            changed[index] = if changed[index] == b'B' { b'C' } else { b'B' };
            assert_eq!(read(&key, std::str::from_utf8(&changed).expect("ASCII")), None, "at {index}");
        }
    }
}
