//! Page sessions: a person signs in with a token once, and the browser then carries a cookie in its place (X7).
//!
//! The cookie is a secret drawn at random and a signature over it: a forged one is told without asking the database, which
//! keeps the secret's hash alone. It is HttpOnly and SameSite=Lax (a link from a chat leads to the page, a post from there does not), ends with its token, and is replaced every hour. Whatever
//! changes something must come from a page of our own (`check_origin`), and no GET changes anything.

use std::fmt;

use axum::http::header::{COOKIE, HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::limits::SESSION_S;
use ring::hmac;
use sha2::{Digest, Sha256};
use store::clock::fill_random;

use crate::auth::changes;
use crate::error::ApiError;

const NAME: &str = "windlass_session";
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SECRET_BYTES: usize = 32;

/// What cookies are signed with. The same on every node, or a session holds on one of them only.
#[derive(Clone)]
pub struct CookieKey {
    /// The first signs, any is accepted.
    keys: Vec<hmac::Key>,
    /// Sent over TLS alone.
    secure: bool,
}

impl fmt::Debug for CookieKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CookieKey")
    }
}

/// A session's secret, as the browser holds it.
pub(crate) struct SessionSecret([u8; SECRET_BYTES]);

impl SessionSecret {
    pub(crate) fn new() -> Self {
        let mut secret = [0; SECRET_BYTES];
        fill_random(&mut secret);
        Self(secret)
    }

    /// What is kept of it.
    pub(crate) fn hash(&self) -> [u8; 32] {
        Sha256::new().chain_update(b"windlass session").chain_update(self.0).finalize().into()
    }
}

impl CookieKey {
    /// Signs with the first of these and takes what any of them signed. There must be one.
    pub fn new(secrets: &[[u8; SECRET_BYTES]]) -> Self {
        let keys = secrets.iter().map(|secret| hmac::Key::new(hmac::HMAC_SHA256, secret)).collect();
        Self { keys, secure: false }
    }

    /// Good until this process ends.
    pub fn for_this_process() -> Self {
        let mut secret = [0; SECRET_BYTES];
        fill_random(&mut secret);
        Self::new(&[secret])
    }

    /// Browsers then send the cookie over TLS alone.
    pub fn over_tls_only(self) -> Self {
        Self { secure: true, ..self }
    }

    pub(crate) fn cookie(&self, secret: &SessionSecret) -> HeaderValue {
        let signature = hmac::sign(&self.keys[0], &secret.0);
        let value = format!("{}.{}", URL_SAFE_NO_PAD.encode(secret.0), URL_SAFE_NO_PAD.encode(signature));
        self.header(&value, SESSION_S)
    }

    /// Takes the cookie away.
    pub(crate) fn no_cookie(&self) -> HeaderValue {
        self.header("", 0)
    }

    fn header(&self, value: &str, max_age_s: i64) -> HeaderValue {
        let secure = if self.secure { "; Secure" } else { "" };
        let text = format!("{NAME}={value}; Path=/; HttpOnly; SameSite=Lax; Max-Age={max_age_s}{secure}");
        HeaderValue::from_str(&text).expect("base64 is ASCII")
    }

    /// The session that the request carries, if its signature is ours.
    pub(crate) fn read(&self, headers: &HeaderMap) -> Option<SessionSecret> {
        let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut ours = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|cookie| {
            let (name, value) = cookie.trim().split_once('=')?;
            (name == NAME).then_some(value)
        });
        let (secret, signature) = ours.next()?.split_once('.')?;
        let secret: [u8; SECRET_BYTES] = URL_SAFE_NO_PAD.decode(secret).ok()?.try_into().ok()?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        let ours = self.keys.iter().any(|key| hmac::verify(key, &secret, &signature).is_ok());
        ours.then_some(SessionSecret(secret))
    }
}

/// A change that comes with a cookie comes from a browser, which must say that it is a page of ours that sends it.
pub(crate) fn check_browser(method: &Method, headers: &HeaderMap, public: Option<&str>) -> Result<(), ApiError> {
    let says = headers.contains_key(ORIGIN) || headers.contains_key(SEC_FETCH_SITE);
    if changes(method) && !says { refuse() } else { check_origin(method, headers, public) }
}

fn refuse() -> Result<(), ApiError> {
    Err(ApiError::host_not_allowed("pages of other origins may not change anything here"))
}

/// A change that a browser sends must come from a page of this very origin, or of the public one: a proxy may have put
/// another Host in place of the one that the browser knows.
///
/// Browsers say where a request comes from, and pages cannot forge that; programs say nothing.
pub(crate) fn check_origin(method: &Method, headers: &HeaderMap, public: Option<&str>) -> Result<(), ApiError> {
    if !changes(method) {
        return Ok(());
    }
    let site = headers.get(SEC_FETCH_SITE).map(HeaderValue::as_bytes);
    if site.is_some_and(|site| site != b"same-origin" && site != b"none") {
        return refuse();
    }
    let Some(origin) = headers.get(ORIGIN) else { return Ok(()) };
    let origin = origin.to_str().unwrap_or_default();
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let named = origin.split_once("://").map(|(_, host)| host);
    let same = named.zip(host).is_some_and(|(named, host)| named.eq_ignore_ascii_case(host));
    let is_public = public.is_some_and(|public| public.eq_ignore_ascii_case(origin));
    if same || is_public { Ok(()) } else { refuse() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().expect("visible"))).collect()
    }

    #[test]
    fn x7_a_cookie_reads_back_and_a_changed_or_foreign_one_does_not() {
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
        assert_eq!(read(&CookieKey::new(&[new, old]), before), Some(secret.hash()), "until the old key goes");
        assert_eq!(read(&CookieKey::new(&[new]), before), None);
        for place in cookie.len() - 80..cookie.len() {
            let mut changed = cookie.clone().into_bytes();
            changed[place] = if changed[place] == b'B' { b'C' } else { b'B' };
            assert_eq!(read(&key, std::str::from_utf8(&changed).expect("ASCII")), None, "at {place}");
        }
    }

    #[test]
    fn x7_a_change_comes_from_our_own_pages_or_from_no_page() {
        let host = ("host", "w.example:7717");
        let post = Method::POST;
        assert!(check_origin(&post, &headers(&[host]), None).is_ok(), "a program says nothing");
        assert!(check_browser(&post, &headers(&[host]), None).is_err(), "a browser with a cookie says where it is");
        for check in [check_origin, check_browser] {
            let check = |pairs: &[(&'static str, &str)]| check(&post, &headers(pairs), None).is_ok();
            assert!(check(&[host, ("origin", "https://w.example:7717")]));
            assert!(check(&[host, ("sec-fetch-site", "same-origin")]));
            for origin in ["https://evil.example", "null", "https://w.example", "https://w.example:7717.evil.example"] {
                assert!(!check(&[host, ("origin", origin)]), "{origin}");
            }
            for site in ["cross-site", "same-site", "nonsense"] {
                assert!(!check(&[host, ("sec-fetch-site", site)]), "{site}");
            }
        }
        assert!(check_browser(&Method::GET, &headers(&[host, ("origin", "https://evil.example")]), None).is_ok());
    }

    #[test]
    fn x7_behind_a_proxy_pages_of_the_public_origin_are_ours_whatever_host_it_names() {
        for check in [check_origin, check_browser] {
            let check = |site: &str, origin: &str| {
                let said = [("host", "127.0.0.1:7717"), ("sec-fetch-site", site), ("origin", origin)];
                check(&Method::POST, &headers(&said), Some("https://w.example")).is_ok()
            };
            assert!(check("same-origin", "https://w.example"));
            assert!(check("same-origin", "http://127.0.0.1:7717"), "past the proxy");
            assert!(!check("cross-site", "https://w.example"));
            for origin in ["http://w.example", "https://w.example:7717", "https://w.example.evil.example", "null", ""] {
                assert!(!check("same-origin", origin), "{origin}");
            }
        }
    }
}
