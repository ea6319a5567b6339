//! TLS: a certificate and its key from two files, read again when they change (X7).

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

/// How often the files are looked at, at most.
const LOOK: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct TlsError {
    path: String,
    reason: String,
}

/// Cheap to clone.
#[derive(Clone)]
pub struct Tls {
    acceptor: TlsAcceptor,
    files: Arc<Files>,
}

struct Files {
    certificate: PathBuf,
    key: PathBuf,
    current: RwLock<Arc<CertifiedKey>>,
    looked: Mutex<Looked>,
}

struct Looked {
    at: Instant,
    written: [Option<SystemTime>; 2],
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tls({})", self.files.certificate.display())
    }
}

impl Tls {
    /// The chain, the server's own certificate first, and its private key, both as PEM.
    pub fn open(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let looked = Looked { at: Instant::now(), written: written(certificate, key) };
        let files = Arc::new(Files {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            current: RwLock::new(Arc::new(load(certificate, key)?)),
            looked: Mutex::new(looked),
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
        self.files.look();
        self.acceptor.accept(stream).await
    }
}

impl Files {
    /// Takes new files in. While one of the two is there and the other is not yet, the old pair stays.
    fn look(&self) {
        let mut looked = self.looked.lock().expect("nobody panics with it in hand");
        if looked.at.elapsed() < LOOK {
            return;
        }
        looked.at = Instant::now();
        let written = written(&self.certificate, &self.key);
        if written == looked.written {
            return;
        }
        match load(&self.certificate, &self.key) {
            Ok(pair) => {
                *self.current.write().expect("no writer panics") = Arc::new(pair);
                looked.written = written;
                tracing::info!("the TLS certificate was read again");
            }
            Err(error) => tracing::warn!(%error, "the new TLS certificate cannot be used; the old one stays"),
        }
    }
}

fn written(certificate: &Path, key: &Path) -> [Option<SystemTime>; 2] {
    [certificate, key].map(|path| std::fs::metadata(path).and_then(|file| file.modified()).ok())
}

fn load(certificate: &Path, key: &Path) -> Result<CertifiedKey, TlsError> {
    let failed = |path: &Path, reason: String| TlsError { path: path.display().to_string(), reason };
    let chain: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_file_iter(certificate).and_then(|certificates| certificates.collect());
    let chain = chain.map_err(|error| failed(certificate, error.to_string()))?;
    if chain.is_empty() {
        return Err(failed(certificate, "it holds no certificate".into()));
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| failed(key, error.to_string()))?;
    let signing =
        rustls::crypto::ring::sign::any_supported_type(&private).map_err(|error| failed(key, error.to_string()))?;
    let pair = CertifiedKey::new(chain, signing);
    pair.keys_match().map_err(|_| failed(key, "it is not the key of the certificate".into()))?;
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
        Some(self.0.current.read().expect("no reader panics").clone())
    }
}
