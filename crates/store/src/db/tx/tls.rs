//! TLS to PostgreSQL with libpq's parameters: `sslmode` and `sslrootcert`.
//!
//! By default TLS is opportunistic (`sslmode=prefer`) and the certificate is not verified, because most servers have a
//! self-signed one.

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

/// The parsed URL of a server.
pub(super) struct Address {
    pub(super) config: Config,
    pub(super) tls: MakeRustlsConnect,
}

/// How the server's certificate is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verification {
    Nothing,
    /// A trusted authority must have signed it (`verify-ca`).
    Signature,
    /// It must also be valid for this host (`verify-full`).
    SignatureAndName,
}

impl Address {
    /// Parses a `postgres://` URL.
    pub(super) fn parse(url: &str) -> Result<Self, StoreError> {
        let invalid =
            |error: tokio_postgres::Error| StoreError::Unusable(format!("the database URL is not valid: {error}"));
        let (plain, verification, roots) = understood(url);
        let roots = match roots {
            Some(file) => Some(read_roots(Path::new(&file))?),
            None => None,
        };
        let mut config: Config = plain.parse().map_err(invalid)?;
        // Detects a dead server within half a minute, also on a connection that only listens.
        config
            .keepalives_idle(Duration::from_secs(10))
            .keepalives_interval(Duration::from_secs(5))
            .keepalives_retries(3);
        config.tcp_user_timeout(Duration::from_secs(10));
        Ok(Self { config, tls: MakeRustlsConnect::new(client_config(verification, roots)?) })
    }
}

/// Splits a URL into the part that the driver understands, the verification mode and the file of root certificates.
fn understood(url: &str) -> (String, Verification, Option<String>) {
    let Some((place, query)) = url.split_once('?') else { return (url.to_owned(), Verification::Nothing, None) };
    let (mut verification, mut roots, mut kept) = (None, None, Vec::new());
    for pair in query.split('&') {
        match pair.split_once('=') {
            Some(("sslrootcert", file)) => roots = Some(percent_decode_str(file).decode_utf8_lossy().into_owned()),
            Some(("sslmode", "verify-full")) => verification = Some(Verification::SignatureAndName),
            Some(("sslmode", "verify-ca")) => verification = Some(Verification::Signature),
            Some(("sslmode", "allow")) => kept.push("sslmode=prefer"),
            _ => kept.push(pair),
        }
    }
    if kept.contains(&"sslmode=disable") {
        return (format!("{place}?{}", kept.join("&")), Verification::Nothing, None);
    }
    // `sslrootcert` alone implies verification.
    let verification =
        verification.or(roots.is_some().then_some(Verification::SignatureAndName)).unwrap_or(Verification::Nothing);
    if verification != Verification::Nothing {
        kept.retain(|pair| !pair.starts_with("sslmode="));
        kept.push("sslmode=require");
    }
    (format!("{place}?{}", kept.join("&")), verification, roots)
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

/// Without root certificates of its own, verification uses the roots of the public web.
fn client_config(verification: Verification, roots: Option<RootCertStore>) -> Result<ClientConfig, StoreError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let roots = roots.unwrap_or_else(|| RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() });
    let signed = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
    let signed = signed.map_err(|error| StoreError::Unusable(error.to_string()))?;
    let verifier = Verifier { verification, signed, provider: provider.clone() };
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring offers the default protocol versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth())
}

#[derive(Debug)]
struct Verifier {
    verification: Verification,
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
        if self.verification == Verification::Nothing {
            return Ok(ServerCertVerified::assertion());
        }
        match self.signed.verify_server_cert(certificate, between, name, ocsp, now) {
            // The name is checked last: the rest of the certificate is valid.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.verification == Verification::Signature => Ok(ServerCertVerified::assertion()),
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

    /// Requirement X7.
    #[test]
    fn the_ssl_mode_of_a_url_selects_the_certificate_verification() {
        let cases = [
            ("postgres://h/d", "postgres://h/d", Verification::Nothing, None),
            ("postgres://h/d?sslmode=require", "postgres://h/d?sslmode=require", Verification::Nothing, None),
            ("postgres://h/d?sslmode=allow", "postgres://h/d?sslmode=prefer", Verification::Nothing, None),
            (
                "postgres://h/d?sslmode=disable&sslrootcert=x",
                "postgres://h/d?sslmode=disable",
                Verification::Nothing,
                None,
            ),
            (
                "postgres://h/d?sslmode=verify-full",
                "postgres://h/d?sslmode=require",
                Verification::SignatureAndName,
                None,
            ),
            (
                "postgres://h/d?sslmode=verify-ca&sslrootcert=/etc/my%20ca.crt&connect_timeout=3",
                "postgres://h/d?connect_timeout=3&sslmode=require",
                Verification::Signature,
                Some("/etc/my ca.crt"),
            ),
            (
                "postgres://h/d?sslmode=prefer&sslrootcert=ca.crt",
                "postgres://h/d?sslmode=require",
                Verification::SignatureAndName,
                Some("ca.crt"),
            ),
        ];
        for (url, plain, verification, roots) in cases {
            assert_eq!(understood(url), (plain.to_owned(), verification, roots.map(str::to_owned)), "{url}");
        }
    }
}
