//! The HTTP client for URLs that users supply, with protection against server-side request forgery.
//!
//! Addresses are checked after resolution, and the connection goes to a checked address, which prevents DNS rebinding.
//! Redirects are not followed and proxies are not used.

mod guard;
pub mod sign;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use domain::address::Allowed;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Method, Response, Url};
use tokio::time::{Instant, timeout_at};

pub use guard::{DnsResolver, SystemResolver};
use guard::{Guard, Refused};

/// Hop-by-hop and framing headers, which a caller must not set.
const RESERVED: [&str; 9] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
const RESERVED_PREFIXES: [&str; 2] = ["webhook-", "windlass-"];

/// An HTTP client that connects only to allowed addresses. Clones are cheap and share the connection pool.
#[derive(Clone)]
pub struct Outbound {
    http: reqwest::Client,
    allowed: Arc<Allowed>,
}

/// An outbound request.
#[derive(Clone, Debug)]
pub struct OutboundRequest {
    pub url: String,
    pub method: String,
    pub headers: Vec<(String, String)>,
    pub body: String,
    /// From the first packet to the last byte of the response.
    pub timeout: Duration,
    /// Bytes of the response body that are read.
    pub max_response_bytes: usize,
}

#[derive(Clone, Debug)]
pub struct OutboundResponse {
    pub status: u16,
    pub body: Vec<u8>,
    /// The body was longer than the limit, or did not end in time.
    pub truncated: bool,
    pub retry_after_s: Option<i64>,
}

#[derive(Debug, thiserror::Error)]
pub enum OutboundError {
    /// The request is malformed. A retry cannot succeed.
    #[error("{0}")]
    Invalid(String),
    /// The address is not allowed.
    #[error("{0}")]
    Refused(String),
    /// The request must be signed and cannot be signed at present.
    #[error("cannot be signed: {0}")]
    Unsigned(String),
    #[error("no response within {} s", .0.as_secs_f64())]
    TimedOut(Duration),
    #[error("unreachable: {0}")]
    Unreachable(String),
}

impl Outbound {
    pub fn new(allowed: Allowed) -> Self {
        Self::with_resolver(allowed, Arc::new(SystemResolver))
    }

    /// Uses a custom resolver.
    pub fn with_resolver(allowed: Allowed, resolver: Arc<dyn DnsResolver>) -> Self {
        let allowed = Arc::new(allowed);
        let http = reqwest::Client::builder()
            .user_agent(concat!("windlass/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .dns_resolver(Arc::new(Guard { resolver, allowed: allowed.clone() }))
            .connect_timeout(Duration::from_secs(5))
            .pool_idle_timeout(Duration::from_secs(30))
            .pool_max_idle_per_host(4)
            .tls_backend_preconfigured(public_roots())
            .build()
            .expect("the client settings are valid");
        Self { http, allowed }
    }

    /// Sends the request, unless its address is not allowed, and reads the response up to its limits.
    pub async fn send(&self, request: OutboundRequest) -> Result<OutboundResponse, OutboundError> {
        let (timeout, most) = (request.timeout, request.max_response_bytes);
        let deadline = Instant::now() + timeout;
        match timeout_at(deadline, self.send_request(request)).await {
            Ok(response) => Ok(read(response?, most, deadline).await),
            Err(_) => Err(OutboundError::TimedOut(timeout)),
        }
    }

    async fn send_request(&self, request: OutboundRequest) -> Result<Response, OutboundError> {
        let url = parse_url(&request.url)?;
        // The resolver is not called for an address literal.
        if let Some(address) = address_in(&url) {
            guard::check_addresses(&self.allowed, &[address])
                .map_err(|refused| OutboundError::Refused(refused.to_string()))?;
        }
        let method = Method::from_bytes(request.method.as_bytes())
            .map_err(|_| OutboundError::Invalid(format!("`{}` is not an HTTP method", request.method)))?;
        let mut headers = HeaderMap::new();
        for (name, value) in &request.headers {
            let pair = HeaderName::from_bytes(name.as_bytes()).ok().zip(HeaderValue::from_str(value).ok());
            let (name, value) = pair.ok_or_else(|| OutboundError::Invalid(format!("invalid header {name}")))?;
            headers.insert(name, value);
        }
        let sending = self.http.request(method, url).headers(headers).body(request.body).send();
        sending.await.map_err(|error| error_of(&error))
    }
}

/// Reads the response body. The status alone counts as a response, even if the body breaks off or does not end in time.
async fn read(mut response: Response, most: usize, deadline: Instant) -> OutboundResponse {
    let retry_after_s = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let (status, mut body, mut truncated) = (response.status().as_u16(), Vec::new(), false);
    while !truncated {
        let chunk = match timeout_at(deadline, response.chunk()).await {
            Ok(Ok(Some(chunk))) => chunk,
            Ok(_) => break,
            Err(_) => {
                truncated = true;
                break;
            }
        };
        let capacity = most - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(capacity)]);
        truncated = chunk.len() > capacity;
    }
    OutboundResponse { status, body, truncated, retry_after_s }
}

/// Parses an http or https URL with a host and without credentials.
pub fn parse_url(text: &str) -> Result<Url, OutboundError> {
    let url = Url::parse(text).map_err(|error| OutboundError::Invalid(format!("invalid URL: {error}")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(OutboundError::Invalid("the URL must begin with http:// or https://".into()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(OutboundError::Invalid("the URL must not contain a user or a password".into()));
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err(OutboundError::Invalid("the URL must have a host".into()));
    }
    Ok(url)
}

/// True if a caller must not set this header.
pub fn is_reserved_header(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    RESERVED.contains(&name.as_str()) || RESERVED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// The address literal in a URL, if any. The URL parser normalizes all notations (octal, hexadecimal, a single number,
/// full-width digits).
pub fn address_in(url: &Url) -> Option<IpAddr> {
    let host = url.host_str()?;
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// The innermost cause, without the URL, which may contain secrets.
fn error_of(error: &reqwest::Error) -> OutboundError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(error);
    let mut last = None;
    while let Some(deeper) = cause {
        if let Some(refused) = deeper.downcast_ref::<Refused>() {
            return OutboundError::Refused(refused.to_string());
        }
        last = Some(deeper.to_string());
        cause = deeper.source();
    }
    if error.is_builder() {
        return OutboundError::Invalid(last.unwrap_or_else(|| "the request is not valid".into()));
    }
    OutboundError::Unreachable(last.unwrap_or_else(|| "the connection failed".into()))
}

pub(crate) fn public_roots() -> rustls::ClientConfig {
    let roots = rustls::RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.into() };
    rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring supports the default protocol versions")
        .with_root_certificates(roots)
        .with_no_client_auth()
}
