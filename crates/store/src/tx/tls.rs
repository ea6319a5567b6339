//! TLS to PostgreSQL, as its own clients have it: `sslmode` says how much is asked of the server, `sslrootcert` who must have
//! signed its certificate.
//!
//! Without a word about it the connection is encrypted where the server offers that, and the certificate is not judged:
//! most servers have one that they signed themselves.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio_postgres::Config;
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::StoreError;

/// Where a server is, and how it is spoken to.
pub(super) struct Address {
    pub(super) config: Config,
    pub(super) tls: MakeRustlsConnect,
}

/// What is asked of the server's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Nothing,
    /// That somebody who is trusted signed it.
    Signature,
    /// That it is also for this host.
    SignatureAndName,
}

impl Address {
    /// Of a `postgres://` URL.
    pub(super) fn parse(url: &str) -> Result<Self, StoreError> {
        let invalid =
            |error: tokio_postgres::Error| StoreError::Unusable(format!("the database URL is not valid: {error}"));
        let (plain, asked, roots) = understood(url);
        let roots = match roots {
            Some(file) => Some(read_roots(Path::new(&file))?),
            None => None,
        };
        let mut config: Config = plain.parse().map_err(invalid)?;
        // A server that is gone without a word is noticed within half a minute, also by who only listens.
        config
            .keepalives_idle(Duration::from_secs(10))
            .keepalives_interval(Duration::from_secs(5))
            .keepalives_retries(3);
        config.tcp_user_timeout(Duration::from_secs(10));
        Ok(Self { config, tls: MakeRustlsConnect::new(client_config(asked, roots)?) })
    }
}

/// The URL as the driver takes it, what is asked of the certificate, and the file with who may have signed it.
fn understood(url: &str) -> (String, Asked, Option<String>) {
    let Some((place, query)) = url.split_once('?') else { return (url.to_owned(), Asked::Nothing, None) };
    let (mut asked, mut roots, mut kept) = (None, None, Vec::new());
    for pair in query.split('&') {
        match pair.split_once('=') {
            Some(("sslrootcert", file)) => roots = Some(percent_decode_str(file).decode_utf8_lossy().into_owned()),
            Some(("sslmode", "verify-full")) => asked = Some(Asked::SignatureAndName),
            Some(("sslmode", "verify-ca")) => asked = Some(Asked::Signature),
            Some(("sslmode", "allow")) => kept.push("sslmode=prefer"),
            _ => kept.push(pair),
        }
    }
    if kept.contains(&"sslmode=disable") {
        return (format!("{place}?{}", kept.join("&")), Asked::Nothing, None);
    }
    // Who names the signers wants them looked at.
    let asked = asked.or(roots.is_some().then_some(Asked::SignatureAndName)).unwrap_or(Asked::Nothing);
    if asked != Asked::Nothing {
        kept.retain(|pair| !pair.starts_with("sslmode="));
        kept.push("sslmode=require");
    }
    (format!("{place}?{}", kept.join("&")), asked, roots)
}

fn read_roots(file: &Path) -> Result<RootCertStore, StoreError> {
    let unusable = |error: String| StoreError::Unusable(format!("sslrootcert {}: {error}", file.display()));
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    let mut roots = RootCertStore::empty();
    for certificate in certificates.map_err(|error| unusable(error.to_string()))? {
        roots.add(certificate).map_err(|error| unusable(error.to_string()))?;
    }
    if roots.is_empty() { Err(unusable("it holds no certificate".into())) } else { Ok(roots) }
}

/// Without roots of its own, a server that is judged must have a certificate that the public web would trust.
fn client_config(asked: Asked, roots: Option<RootCertStore>) -> Result<ClientConfig, StoreError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let roots = roots.unwrap_or_else(|| RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() });
    let signed = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
    let signed = signed.map_err(|error| StoreError::Unusable(error.to_string()))?;
    let verifier = Verifier { asked, signed, provider: provider.clone() };
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring offers the default protocol versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth())
}

#[derive(Debug)]
struct Verifier {
    asked: Asked,
    signed: Arc<WebPkiServerVerifier>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.asked == Asked::Nothing {
            return Ok(ServerCertVerified::assertion());
        }
        match self.signed.verify_server_cert(certificate, between, name, ocsp, now) {
            // The name is looked at last: all else is as it should be.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.asked == Asked::Signature => Ok(ServerCertVerified::assertion()),
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x7_a_url_says_how_much_is_asked_of_the_server() {
        let cases = [
            ("postgres://h/d", "postgres://h/d", Asked::Nothing, None),
            ("postgres://h/d?sslmode=require", "postgres://h/d?sslmode=require", Asked::Nothing, None),
            ("postgres://h/d?sslmode=allow", "postgres://h/d?sslmode=prefer", Asked::Nothing, None),
            ("postgres://h/d?sslmode=disable&sslrootcert=x", "postgres://h/d?sslmode=disable", Asked::Nothing, None),
            ("postgres://h/d?sslmode=verify-full", "postgres://h/d?sslmode=require", Asked::SignatureAndName, None),
            (
                "postgres://h/d?sslmode=verify-ca&sslrootcert=/etc/my%20ca.crt&connect_timeout=3",
                "postgres://h/d?connect_timeout=3&sslmode=require",
                Asked::Signature,
                Some("/etc/my ca.crt"),
            ),
            (
                "postgres://h/d?sslmode=prefer&sslrootcert=ca.crt",
                "postgres://h/d?sslmode=require",
                Asked::SignatureAndName,
                Some("ca.crt"),
            ),
        ];
        for (url, plain, asked, roots) in cases {
            assert_eq!(understood(url), (plain.to_owned(), asked, roots.map(str::to_owned)), "{url}");
        }
    }
}
