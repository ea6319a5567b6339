//! The one way out: every HTTP request that a user's URL causes goes through here, and nowhere it should not (Q10).
//!
//! The address is judged after resolution, and the connection goes to the address that was judged: a name that answers
//! differently the second time gains nothing. Redirects are not followed, proxies are not asked.

mod guard;
pub mod sign;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use domain::address::Allowed;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Method, Response, Url};
use tokio::time::{Instant, timeout_at};

use guard::{Guard, Refused};
pub use guard::{Resolve, SystemResolver};

/// Headers that say how a message is carried or who sends it; a caller may not set them.
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

/// A client whose connections go only where they may. Cheap to clone; connections are kept and shared.
#[derive(Clone)]
pub struct Outbound {
    http: reqwest::Client,
    allowed: Arc<Allowed>,
}

/// A request on its way out.
#[derive(Clone, Debug)]
pub struct Request {
    pub url: String,
    pub method: String,
    pub headers: Vec<(String, String)>,
    pub body: String,
    /// From the first packet to the last byte of the answer.
    pub timeout: Duration,
    /// How much of the answer is read.
    pub answer_bytes: usize,
}

#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
    /// The answer had more than was read, or did not come to its end in time.
    pub cut: bool,
    pub retry_after_s: Option<i64>,
}

#[derive(Debug, thiserror::Error)]
pub enum OutboundError {
    /// The request makes no sense; it would not next time either.
    #[error("{0}")]
    Invalid(String),
    /// It leads where outbound calls may not go.
    #[error("{0}")]
    Refused(String),
    /// It must be signed and cannot be, for now.
    #[error("cannot be signed: {0}")]
    Unsigned(String),
    #[error("no answer within {} s", .0.as_secs_f64())]
    TimedOut(Duration),
    #[error("cannot be reached: {0}")]
    Unreachable(String),
}

impl Outbound {
    pub fn new(allowed: Allowed) -> Self {
        Self::resolving(allowed, Arc::new(SystemResolver))
    }

    /// With names resolved by somebody else.
    pub fn resolving(allowed: Allowed, resolver: Arc<dyn Resolve>) -> Self {
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
            .expect("the settings above make a client");
        Self { http, allowed }
    }

    /// Sends, unless it leads where it may not, and reads the answer as far as asked.
    pub async fn send(&self, request: Request) -> Result<Answer, OutboundError> {
        let (timeout, most) = (request.timeout, request.answer_bytes);
        let deadline = Instant::now() + timeout;
        match timeout_at(deadline, self.ask(request)).await {
            Ok(response) => Ok(read(response?, most, deadline).await),
            Err(_) => Err(OutboundError::TimedOut(timeout)),
        }
    }

    async fn ask(&self, request: Request) -> Result<Response, OutboundError> {
        let url = parse_url(&request.url)?;
        // The resolver is asked for names only: an address in the URL is judged here.
        if let Some(address) = address_in(&url) {
            guard::judge(&self.allowed, &[address]).map_err(|refused| OutboundError::Refused(refused.to_string()))?;
        }
        let method = Method::from_bytes(request.method.as_bytes())
            .map_err(|_| OutboundError::Invalid(format!("`{}` is not a method", request.method)))?;
        let mut headers = HeaderMap::new();
        for (name, value) in &request.headers {
            let pair = HeaderName::from_bytes(name.as_bytes()).ok().zip(HeaderValue::from_str(value).ok());
            let (name, value) =
                pair.ok_or_else(|| OutboundError::Invalid(format!("the header {name} is not valid")))?;
            headers.insert(name, value);
        }
        let sending = self.http.request(method, url).headers(headers).body(request.body).send();
        sending.await.map_err(|error| told(&error))
    }
}

/// The status is the answer. A receiver that breaks off in the middle of its words, or does not come to their end in time,
/// has given it.
async fn read(mut response: Response, most: usize, deadline: Instant) -> Answer {
    let retry_after_s = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let (status, mut body, mut cut) = (response.status().as_u16(), Vec::new(), false);
    while !cut {
        let chunk = match timeout_at(deadline, response.chunk()).await {
            Ok(Ok(Some(chunk))) => chunk,
            Ok(_) => break,
            Err(_) => {
                cut = true;
                break;
            }
        };
        let room = most - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        cut = chunk.len() > room;
    }
    Answer { status, body, cut, retry_after_s }
}

/// An http or https URL with a host and without a password: what else could be called?
pub fn parse_url(text: &str) -> Result<Url, OutboundError> {
    let url = Url::parse(text).map_err(|error| OutboundError::Invalid(format!("the URL is not valid: {error}")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(OutboundError::Invalid("the URL must begin with http:// or https://".into()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(OutboundError::Invalid("the URL must not carry a user or a password".into()));
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err(OutboundError::Invalid("the URL must name a host".into()));
    }
    Ok(url)
}

/// Whether a caller may send this header of its own.
pub fn is_reserved_header(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    RESERVED.contains(&name.as_str()) || RESERVED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// The address that a URL names itself. Whatever it was written as (octal, hexadecimal, one number, full-width digits),
/// the URL's parser has made it plain.
pub fn address_in(url: &Url) -> Option<IpAddr> {
    let host = url.host_str()?;
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// The cause without the URL, which may carry what a log should not.
fn told(error: &reqwest::Error) -> OutboundError {
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
