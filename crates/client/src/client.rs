//! The HTTP client: connection pool, address, token and TLS. The routes are in the modules of the groups (`queue`,
//! `fleet`, `signals`, `triggers`, `runtimes`, `access`).

#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Method, RequestBuilder, Response, Url};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::Serialize;
use serde::de::DeserializeOwned;
use wire::Problem;

use crate::error::{ClientError, UNDOCUMENTED};

/// A client for one server. Cheap to clone; clones share the connection pool.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    api: Url,
    timeout: Duration,
}

/// Builds a client.
pub struct ClientBuilder {
    url: String,
    token: Option<String>,
    timeout: Duration,
    connect_timeout: Duration,
    tls: Option<rustls::ClientConfig>,
    authorities: Vec<u8>,
}

impl Client {
    /// Creates a client without a token and with the default timeouts.
    pub fn new(url: &str) -> Result<Self, ClientError> {
        Self::builder(url).build()
    }

    /// Starts to build a client for the server at this URL.
    pub fn builder(url: &str) -> ClientBuilder {
        ClientBuilder {
            url: url.to_owned(),
            token: None,
            timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(5),
            tls: None,
            authorities: Vec::new(),
        }
    }

    /// Checks that the server is ready: it has a database and writes to it. An error says why it is not.
    pub async fn ready(&self) -> Result<(), ClientError> {
        let mut url = self.api.clone();
        url.path_segments_mut().expect("the builder accepts only URLs with a path").pop().pop().push("readyz");
        self.execute(self.http.get(url)).await
    }

    /// A request to a path below `/api/v1`. Segments are percent-encoded, so that any name is safe.
    pub(crate) fn request(&self, method: Method, path: &[&str]) -> RequestBuilder {
        let mut url = self.api.clone();
        url.path_segments_mut().expect("the builder accepts only URLs with a path").extend(path);
        self.http.request(method, url)
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) fn get(&self, path: &[&str]) -> RequestBuilder {
        self.request(Method::GET, path)
    }

    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &[&str],
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.fetch(self.request(Method::POST, path).json(body)).await
    }

    pub(crate) async fn fetch<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, ClientError> {
        self.fetch_held(Duration::ZERO, request).await
    }

    /// Sends a request that the server may hold open for `wait` (long poll), and parses the response.
    pub(crate) async fn fetch_held<T: DeserializeOwned>(
        &self,
        wait: Duration,
        request: RequestBuilder,
    ) -> Result<T, ClientError> {
        let response = self.send(request.timeout(self.timeout.saturating_add(wait))).await?;
        read(response).await
    }

    /// Sends a request and ignores the body of a successful response.
    pub(crate) async fn execute(&self, request: RequestBuilder) -> Result<(), ClientError> {
        self.send(request.timeout(self.timeout)).await.map(drop)
    }

    /// Sends a request and returns a successful response unread. Any other response becomes a `Problem`.
    pub(crate) async fn send(&self, request: RequestBuilder) -> Result<Response, ClientError> {
        let response = request.send().await.map_err(unreachable)?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let body = response.bytes().await.map_err(unreachable)?;
        let problem = serde_json::from_slice(&body).unwrap_or_else(|_| Problem {
            kind: UNDOCUMENTED.into(),
            title: status.canonical_reason().unwrap_or("Unknown status").into(),
            status: status.as_u16(),
            detail: format!(
                "unexpected response {status} without a problem document; is this the address of a Windlass server?"
            ),
            code: if status.is_server_error() { wire::code::OUTCOME_UNKNOWN } else { wire::code::NO_SUCH_ROUTE }.into(),
            ..Problem::default()
        });
        Err(ClientError::Problem(Box::new(problem)))
    }
}

impl ClientBuilder {
    /// Sets the bearer token for every request.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Sets the timeout of a request, in addition to the time for which the server may hold it open [default: 30 s].
    /// Does not apply to uploads and downloads of artifacts.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the timeout of a connection attempt [default: 5 s].
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Trusts these certificates (PEM) in addition to the public certificate authorities.
    pub fn trust(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.authorities = pem.into();
        self
    }

    /// Replaces the TLS configuration, including that of `trust`; for example to trust only a private certificate
    /// authority.
    pub fn tls(mut self, config: rustls::ClientConfig) -> Self {
        self.tls = Some(config);
        self
    }

    /// Builds the client.
    pub fn build(self) -> Result<Client, ClientError> {
        let mut api = Url::parse(&self.url).map_err(|error| ClientError::Address(error.to_string()))?;
        if !matches!(api.scheme(), "http" | "https") {
            return Err(ClientError::Address("it must start with http:// or https://".into()));
        }
        api.set_query(None);
        api.set_fragment(None);
        api.path_segments_mut().expect("http addresses have a path").pop_if_empty().extend(["api", "v1"]);
        let mut headers = HeaderMap::new();
        if let Some(token) = &self.token {
            let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| ClientError::Token)?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let tls = match self.tls {
            Some(config) => config,
            None => tls_config(roots(&self.authorities)?),
        };
        let mut http = reqwest::Client::builder()
            .default_headers(headers)
            .user_agent(concat!("windlass/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(self.connect_timeout)
            .tcp_keepalive(Duration::from_secs(30))
            // The server closes connections that are idle for 60 s. Do not reuse one that is close to that.
            .pool_idle_timeout(Duration::from_secs(20))
            .redirect(reqwest::redirect::Policy::none())
            .tls_backend_preconfigured(tls);
        if is_loopback(&api) {
            // A proxy could not reach this machine's loopback.
            http = http.no_proxy();
        }
        let http = http.build().map_err(|error| ClientError::Encode(error.into()))?;
        Ok(Client { http, api, timeout: self.timeout })
    }
}

/// The public certificate authorities and those in `pem`. Non-empty `pem` must contain a certificate.
fn roots(pem: &[u8]) -> Result<RootCertStore, ClientError> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.into() };
    let before = roots.len();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| ClientError::Authority(error.to_string()))?;
        roots.add(certificate).map_err(|error| ClientError::Authority(error.to_string()))?;
    }
    if !pem.is_empty() && roots.len() == before {
        return Err(ClientError::Authority("no PEM certificate found".into()));
    }
    Ok(roots)
}

// Uses its own crypto provider instead of installing one for the process, which belongs to the embedding program.
fn tls_config(roots: RootCertStore) -> rustls::ClientConfig {
    rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring supports the default protocol versions")
        .with_root_certificates(roots)
        .with_no_client_auth()
}

fn is_loopback(url: &Url) -> bool {
    url.host_str().is_some_and(|host| {
        host == "localhost"
            || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    })
}

pub(crate) async fn read<T: DeserializeOwned>(response: Response) -> Result<T, ClientError> {
    let body = response.bytes().await.map_err(unreachable)?;
    serde_json::from_slice(&body).map_err(ClientError::Decode)
}

pub(crate) fn unreachable(error: reqwest::Error) -> ClientError {
    if error.is_builder() {
        return ClientError::Encode(error.without_url().into());
    }
    // Remove the URL, which may contain a password: errors end up in logs.
    ClientError::Unreachable { sent: !error.is_connect(), source: error.without_url().into() }
}
