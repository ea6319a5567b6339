//! TLS with a certificate and key from two PEM files, reloaded when the files change.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant, SystemTime};

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Minimum interval between two checks of the files.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct TlsError {
    path: String,
    reason: String,
}

/// TLS acceptor. Cheap to clone.
#[derive(Clone)]
pub struct Tls {
    acceptor: TlsAcceptor,
    files: Arc<Files>,
}

struct Files {
    certificate: PathBuf,
    key: PathBuf,
    current: RwLock<Arc<CertifiedKey>>,
    checked: Mutex<LastCheck>,
}

struct LastCheck {
    at: Instant,
    modified: [Option<SystemTime>; 2],
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tls({})", self.files.certificate.display())
    }
}

impl Tls {
    /// Loads the certificate chain (the server's own certificate first) and its private key from PEM files.
    pub fn open(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let checked = LastCheck { at: Instant::now(), modified: modified(certificate, key) };
        let files = Arc::new(Files {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            current: RwLock::new(Arc::new(load(certificate, key)?)),
            checked: Mutex::new(checked),
        });
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring offers the default protocol versions")
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Resolver(files.clone())));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), files })
    }

    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.files.reload_if_changed();
        self.acceptor.accept(stream).await
    }
}

impl Files {
    /// Reloads the files if they changed. While only one of the two was replaced, the pair does not match and the old
    /// one stays in use.
    fn reload_if_changed(&self) {
        let mut checked = self.checked.lock().expect("lock poisoned");
        if checked.at.elapsed() < CHECK_INTERVAL {
            return;
        }
        checked.at = Instant::now();
        let modified = modified(&self.certificate, &self.key);
        if modified == checked.modified {
            return;
        }
        match load(&self.certificate, &self.key) {
            Ok(pair) => {
                *self.current.write().expect("lock poisoned") = Arc::new(pair);
                checked.modified = modified;
                tracing::info!("reloaded the TLS certificate");
            }
            Err(error) => tracing::warn!(%error, "cannot use the new TLS certificate; keeping the old one"),
        }
    }
}

fn modified(certificate: &Path, key: &Path) -> [Option<SystemTime>; 2] {
    [certificate, key].map(|path| std::fs::metadata(path).and_then(|file| file.modified()).ok())
}

fn load(certificate: &Path, key: &Path) -> Result<CertifiedKey, TlsError> {
    let failed = |path: &Path, reason: String| TlsError { path: path.display().to_string(), reason };
    let chain: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_file_iter(certificate).and_then(|certificates| certificates.collect());
    let chain = chain.map_err(|error| failed(certificate, error.to_string()))?;
    if chain.is_empty() {
        return Err(failed(certificate, "the file contains no certificate".into()));
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| failed(key, error.to_string()))?;
    let signing =
        rustls::crypto::ring::sign::any_supported_type(&private).map_err(|error| failed(key, error.to_string()))?;
    let pair = CertifiedKey::new(chain, signing);
    pair.keys_match().map_err(|_| failed(key, "the key does not match the certificate".into()))?;
    Ok(pair)
}

struct Resolver(Arc<Files>);

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resolver")
    }
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.current.read().expect("lock poisoned").clone())
    }
}
