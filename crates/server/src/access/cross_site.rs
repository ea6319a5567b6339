//! Prevents cross-site request forgery: pages of other origins must not change anything. `auth` checks every request.
//!
//! One rule applies to every route, with and without tokens. A page on another port of this machine is another origin:
//! without tokens it would otherwise have the rights of the local operator, because a request without a body needs no
//! CORS preflight. Routes with a secret of their own (hooks, facts of subjects) have no exception. The server sends no
//! CORS headers, so no page can send `Authorization` or read a response, and a hook whose id is its only secret must not
//! be callable by any page that learns the id.

use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};

use crate::access::auth::changes;
use crate::error::ApiError;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The origins whose pages may send changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnOrigin<'a> {
    /// True if this server terminates TLS itself.
    pub(crate) has_tls: bool,
    /// The origin of the dashboard behind a proxy, which may have replaced the `Host` that the browser sent.
    pub(crate) public: Option<&'a str>,
}

impl OwnOrigin<'_> {
    /// Rejects a change that a browser sent for a page of another origin.
    ///
    /// Browsers send at least one of the two headers with every change, and pages cannot forge them. Other programs send
    /// neither and pass.
    pub(crate) fn check(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        if !changes(method) {
            return Ok(());
        }
        let is_own_site = |site: &HeaderValue| site == "same-origin" || site == "none";
        let site = headers.get_all(SEC_FETCH_SITE).iter().find(|site| !is_own_site(site));
        if let Some(site) = site {
            return Err(refusal(&format!("Sec-Fetch-Site is {}", quoted(site))));
        }
        let foreign = headers.get_all(ORIGIN).iter().find(|origin| !self.is_own(origin, uri, headers));
        foreign.map_or(Ok(()), |origin| Err(refusal(&format!("Origin is {}", quoted(origin)))))
    }

    /// Like `check`, for a request that is authenticated by a cookie. It comes from a browser, so one of the headers is
    /// mandatory.
    pub(crate) fn check_with_cookie(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        let has_origin = headers.contains_key(ORIGIN) || headers.contains_key(SEC_FETCH_SITE);
        if changes(method) && !has_origin {
            return Err(refusal("the request has a session cookie, but neither Origin nor Sec-Fetch-Site"));
        }
        self.check(method, uri, headers)
    }

    /// True if scheme, host and port are those of this server, or of the public origin.
    fn is_own(&self, origin: &HeaderValue, uri: &Uri, headers: &HeaderMap) -> bool {
        let Ok(origin) = origin.to_str() else { return false };
        if self.public.is_some_and(|public| public.eq_ignore_ascii_case(origin)) {
            return true;
        }
        let (scheme, default_port) = if self.has_tls { ("https", ":443") } else { ("http", ":80") };
        // HTTP/2 sends the host as the authority of the target.
        let host = headers.get(HOST).and_then(|host| host.to_str().ok());
        let host = host.or_else(|| uri.authority().map(|authority| authority.as_str()));
        let (Some((origin_scheme, origin_host)), Some(host)) = (origin.split_once("://"), host) else { return false };
        let without_default_port = |host: &str| host.strip_suffix(default_port).unwrap_or(host).to_ascii_lowercase();
        origin_scheme.eq_ignore_ascii_case(scheme) && without_default_port(origin_host) == without_default_port(host)
    }
}

fn refusal(reason: &str) -> ApiError {
    ApiError::host_not_allowed(&format!(
        "only pages of this server may change something here, and this request comes from another page ({reason}); open \
         the dashboard at its own address, or start the server with --public-url if people reach it through a proxy"
    ))
}

/// The value as a problem document may show it.
fn quoted(value: &HeaderValue) -> String {
    let text: String = String::from_utf8_lossy(value.as_bytes()).chars().take(100).collect();
    format!("{text:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST_NAME: (&str, &str) = ("host", "w.example:7717");
    const DIRECT: OwnOrigin<'_> = OwnOrigin { has_tls: false, public: None };

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(HeaderName::from_static(name), value.parse().expect("visible"));
        }
        headers
    }

    /// The outcomes without and with a cookie.
    fn check(own: OwnOrigin<'_>, method: &Method, pairs: &[(&'static str, &str)]) -> [bool; 2] {
        let (uri, headers) = (Uri::from_static("/a"), headers(pairs));
        [own.check(method, &uri, &headers).is_ok(), own.check_with_cookie(method, &uri, &headers).is_ok()]
    }

    /// Requirement X7.
    #[test]
    fn a_write_request_must_come_from_the_same_origin_or_a_program() {
        let post = Method::POST;
        assert_eq!(check(DIRECT, &post, &[HOST_NAME]), [true, false], "a browser with a cookie sends its origin");
        for own in ["http://w.example:7717", "HTTP://W.example:7717"] {
            assert_eq!(check(DIRECT, &post, &[HOST_NAME, ("origin", own)]), [true; 2], "{own}");
        }
        for site in ["same-origin", "none"] {
            assert_eq!(check(DIRECT, &post, &[HOST_NAME, ("sec-fetch-site", site)]), [true; 2], "{site}");
        }
        for origin in [
            "https://evil.example",
            "null",
            "",
            "http://w.example",
            "http://w.example:9999",
            "https://w.example:7717",
            "http://w.example:7717.evil.example",
            "w.example:7717",
        ] {
            for site in [None, Some(("sec-fetch-site", "same-origin"))] {
                let pairs: Vec<_> = [HOST_NAME, ("origin", origin)].into_iter().chain(site).collect();
                assert_eq!(check(DIRECT, &post, &pairs), [false; 2], "{origin}");
            }
        }
        for site in ["cross-site", "same-site", "nonsense", ""] {
            let pairs = [HOST_NAME, ("origin", "http://w.example:7717"), ("sec-fetch-site", site)];
            assert_eq!(check(DIRECT, &post, &pairs), [false; 2], "{site}");
        }
        let two = [HOST_NAME, ("origin", "http://w.example:7717"), ("origin", "https://evil.example")];
        assert_eq!(check(DIRECT, &post, &two), [false; 2], "every value counts");
        assert_eq!(check(DIRECT, &Method::GET, &[HOST_NAME, ("origin", "https://evil.example")]), [true; 2]);
    }

    /// Requirement X7.
    #[test]
    fn the_scheme_and_the_default_port_are_those_of_the_listener() {
        let tls = OwnOrigin { has_tls: true, public: None };
        for (own, host, origin, is_own) in [
            (tls, "w.example", "https://w.example", true),
            (tls, "w.example:443", "https://w.example", true),
            (tls, "w.example", "http://w.example", false),
            (DIRECT, "w.example:80", "http://w.example", true),
            (DIRECT, "w.example", "https://w.example", false),
            (DIRECT, "w.example:443", "http://w.example", false),
        ] {
            let pairs = [("host", host), ("origin", origin)];
            assert_eq!(check(own, &Method::POST, &pairs), [is_own; 2], "{host} {origin}");
        }
        let uri = Uri::from_static("https://w.example/a");
        assert!(tls.check(&Method::POST, &uri, &headers(&[("origin", "https://w.example")])).is_ok(), "HTTP/2");
    }

    /// Requirement X7.
    #[test]
    fn behind_a_proxy_the_public_origin_is_accepted_for_any_host_header() {
        let own = OwnOrigin { has_tls: false, public: Some("https://w.example") };
        let check = |site: &str, origin: &str| {
            let pairs = [("host", "127.0.0.1:7717"), ("sec-fetch-site", site), ("origin", origin)];
            check(own, &Method::POST, &pairs)
        };
        assert_eq!(check("same-origin", "https://w.example"), [true; 2]);
        assert_eq!(check("same-origin", "http://127.0.0.1:7717"), [true; 2], "bypassing the proxy");
        assert_eq!(check("cross-site", "https://w.example"), [false; 2]);
        for origin in ["http://w.example", "https://w.example:7717", "https://w.example.evil.example", "null", ""] {
            assert_eq!(check("same-origin", origin), [false; 2], "{origin}");
        }
    }
}
