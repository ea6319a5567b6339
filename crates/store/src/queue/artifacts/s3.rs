//! Opens S3 buckets, over the same HTTP client as the rest of the program.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use object_store::aws::AmazonS3Builder;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use object_store::prefix::PrefixStore;
use object_store::{ClientOptions, ObjectStore, RetryConfig};
use rustls::{ClientConfig, RootCertStore};

use crate::error::StoreError;

#[cfg(test)]
mod tests;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A bucket that sends nothing for this long counts as down.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Few retries, so that the caller learns soon that the bucket is down. Further retries are the caller's decision.
const RETRIES: usize = 3;
const RETRY_TIMEOUT: Duration = Duration::from_secs(20);

/// Opens `s3://bucket/prefix` with the regions and credentials of `builder`.
pub(super) fn bucket(url: &str, builder: AmazonS3Builder) -> Result<Arc<dyn ObjectStore>, StoreError> {
    let unusable =
        |error: &dyn std::fmt::Display| StoreError::Unusable(format!("cannot store artifacts in {url}: {error}"));
    let path = url.trim_start_matches("s3://");
    let (bucket, prefix) = path.split_once('/').unwrap_or((path, ""));
    if bucket.is_empty() {
        return Err(unusable(&"the bucket name is missing; use s3://BUCKET/PREFIX"));
    }
    let connector = Connector { client: client().map_err(|error| unusable(&error))? };
    let retry = RetryConfig { max_retries: RETRIES, retry_timeout: RETRY_TIMEOUT, ..RetryConfig::default() };
    let builder = builder.with_bucket_name(bucket).with_http_connector(connector).with_retry(retry);
    let store = builder.build().map_err(|error| unusable(&error))?;
    let prefix = prefix.trim_matches('/');
    Ok(if prefix.is_empty() { Arc::new(store) } else { Arc::new(PrefixStore::new(store, prefix)) })
}

fn client() -> Result<reqwest::Client, reqwest::Error> {
    let roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring offers the default protocol versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(READ_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .build()
}

#[derive(Debug)]
struct Connector {
    client: reqwest::Client,
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Service { client: self.client.clone() }))
    }
}

#[derive(Debug)]
struct Service {
    client: reqwest::Client,
}

impl HttpService for Service {
    fn call<'s, 'f>(
        &'s self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'f>>
    where
        's: 'f,
        Self: 'f,
    {
        Box::pin(async move {
            let request = request.map(reqwest::Body::wrap).try_into().map_err(http_error)?;
            let response = self.client.execute(request).await.map_err(http_error)?;
            let response = hyper::Response::<reqwest::Body>::from(response);
            Ok(response.map(|body| HttpResponseBody::new(body.map_err(http_error))))
        })
    }
}

fn http_error(error: reqwest::Error) -> HttpError {
    let kind = if error.is_timeout() {
        HttpErrorKind::Timeout
    } else if error.is_connect() {
        HttpErrorKind::Connect
    } else {
        HttpErrorKind::Unknown
    };
    HttpError::new(kind, error)
}
