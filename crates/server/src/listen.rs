//! Accepts connections, and protects the server against slow clients (slowloris).
//!
//! A connection holds one permit until it ends. The number of permits, the size of a request head and the time to send
//! it are limited, so a client that opens thousands of idle connections blocks others only for a short time.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use domain::limits::{CONNECTIONS, REQUEST_HEAD_BYTES, REQUEST_HEAD_FIELDS, REQUEST_HEAD_S};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::tls::Tls;

/// Delay after `accept` failed, for example because too many files are open.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Serves until `shutdown`. Then stops accepting connections and waits for requests in flight.
pub(crate) async fn listen(
    listener: TcpListener,
    tls: Option<Tls>,
    router: Router,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(REQUEST_HEAD_S))
        .max_headers(REQUEST_HEAD_FIELDS)
        .max_buf_size(REQUEST_HEAD_BYTES);
    let http = Arc::new(http);
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    let tracker = TaskTracker::new();
    loop {
        let permit = tokio::select! {
            () = shutdown.cancelled() => break,
            permit = permits.clone().acquire_owned() => permit.map_err(io::Error::other)?,
        };
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let connection =
                    Connection { http: http.clone(), router: router.clone(), shutdown: shutdown.clone(), permit };
                tracker.spawn(connection.run(stream, tls.clone()));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
    drop(listener);
    tracker.close();
    tracker.wait().await;
    Ok(())
}

struct Connection {
    http: Arc<http1::Builder>,
    router: Router,
    shutdown: CancellationToken,
    permit: OwnedSemaphorePermit,
}

impl Connection {
    async fn run(self, stream: TcpStream, tls: Option<Tls>) {
        // Nagle's algorithm would only delay responses, which are small and complete.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        let Some(tls) = tls else { return self.serve(stream).await };
        let handshake = tokio::time::timeout(Duration::from_secs(REQUEST_HEAD_S), tls.accept(stream));
        tokio::select! {
            () = self.shutdown.cancelled() => {}
            result = handshake => match result {
                Ok(Ok(stream)) => self.serve(stream).await,
                Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
                Err(_) => tracing::debug!("TLS handshake timed out"),
            },
        }
    }

    async fn serve(&self, stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) {
        let service = TowerToHyperService::new(self.router.clone());
        let mut connection = pin!(self.http.serve_connection(TokioIo::new(stream), service));
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = self.shutdown.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "connection failed");
        }
        let _permit = &self.permit;
    }
}
