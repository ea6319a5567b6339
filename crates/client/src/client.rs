//! The HTTP client: one connection pool, one address, one token. The routes are in `jobs`, `queues`, `workers` and
//! `artifacts`.

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

/// Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    api: Url,
    timeout: Duration,
}

pub struct ClientBuilder {
    url: String,
    token: Option<String>,
    timeout: Duration,
    connect_timeout: Duration,
    tls: Option<rustls::ClientConfig>,
    authorities: Vec<u8>,
}

impl Client {
    /// A client without a token, with the default timeouts.
    pub fn new(url: &str) -> Result<Self, ClientError> {
        Self::builder(url).build()
    }

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

    /// A request to a path under `/api/v1`. Segments are escaped, so that any name is safe.
    pub(crate) fn request(&self, method: Method, path: &[&str]) -> RequestBuilder {
        let mut url = self.api.clone();
        url.path_segments_mut().expect("the builder refuses addresses without a path").extend(path);
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
        self.answer(self.request(Method::POST, path).json(body)).await
    }

    pub(crate) async fn answer<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, ClientError> {
        self.answer_after(Duration::ZERO, request).await
    }

    /// The answer of a request that the server may hold open for `wait`.
    pub(crate) async fn answer_after<T: DeserializeOwned>(
        &self,
        wait: Duration,
        request: RequestBuilder,
    ) -> Result<T, ClientError> {
        let response = self.send(request.timeout(self.timeout.saturating_add(wait))).await?;
        read(response).await
    }

    /// Sends and expects a success; whatever it says is not read.
    pub(crate) async fn done(&self, request: RequestBuilder) -> Result<(), ClientError> {
        self.send(request.timeout(self.timeout)).await.map(drop)
    }

    /// Sends and gives a successful answer as it comes; anything else becomes a problem.
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
            detail: format!("The answer was {status}, without a problem document: is this the address of a server?"),
            code: if status.is_server_error() { wire::code::OUTCOME_UNKNOWN } else { wire::code::NO_SUCH_ROUTE }.into(),
            ..Problem::default()
        });
        Err(ClientError::Problem(Box::new(problem)))
    }
}

impl ClientBuilder {
    /// Sent with every request as a bearer token.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// How long a request may take, beyond the time the server was asked to hold it open. Uploads and downloads of
    /// artifacts may take longer.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Trusts these certificates, as PEM, beside the public authorities: for a server with a certificate of your own authority.
    pub fn trust(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.authorities = pem.into();
        self
    }

    /// Replaces the TLS settings, those of `trust` too, say to trust nobody but a certificate authority of your own.
    pub fn tls(mut self, config: rustls::ClientConfig) -> Self {
        self.tls = Some(config);
        self
    }

    pub fn build(self) -> Result<Client, ClientError> {
        let mut api = Url::parse(&self.url).map_err(|error| ClientError::Address(error.to_string()))?;
        if !matches!(api.scheme(), "http" | "https") {
            return Err(ClientError::Address("it must begin with http:// or https://".into()));
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
            None => trusting(roots(&self.authorities)?),
        };
        let mut http = reqwest::Client::builder()
            .default_headers(headers)
            .user_agent(concat!("windlass/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(self.connect_timeout)
            .tcp_keepalive(Duration::from_secs(30))
            // A server closes connections that say nothing for a minute: one that is near that is not used again.
            .pool_idle_timeout(Duration::from_secs(20))
            .redirect(reqwest::redirect::Policy::none())
            .tls_backend_preconfigured(tls);
        if is_loopback(&api) {
            // A proxy for the world outside cannot reach this machine's own server.
            http = http.no_proxy();
        }
        let http = http.build().map_err(|error| ClientError::Encode(error.into()))?;
        Ok(Client { http, api, timeout: self.timeout })
    }
}

/// The public authorities, and those in `pem`. Where something is given, there must be a certificate in it.
fn roots(pem: &[u8]) -> Result<RootCertStore, ClientError> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.into() };
    let before = roots.len();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| ClientError::Authority(error.to_string()))?;
        roots.add(certificate).map_err(|error| ClientError::Authority(error.to_string()))?;
    }
    if !pem.is_empty() && roots.len() == before {
        return Err(ClientError::Authority("there is no certificate in PEM".into()));
    }
    Ok(roots)
}

/// The provider is named here and not installed for the process, which belongs to whoever embeds this client.
fn trusting(roots: RootCertStore) -> rustls::ClientConfig {
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
    // An address may carry a password, and errors end up in logs.
    ClientError::Unreachable { sent: !error.is_connect(), source: error.without_url().into() }
}
