//! Accepts connections, and protects the server against slow clients (slowloris) and against peers that open many.
//!
//! A connection holds one place until it ends (`connection_places`). The number of places, the size of a request head, the
//! time to send it and the time to read a response are limited.

use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use domain::limits::{REQUEST_HEAD_BYTES, REQUEST_HEAD_FIELDS, REQUEST_HEAD_S, RESERVED_CONNECTION_S, WRITE_IDLE_S};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connection_places::{Admission, ConnectionLimits, ConnectionPlace, ConnectionPlaces};
use crate::error::ApiError;
use crate::tls::Tls;
use crate::write_timeout::WriteTimeout;

/// Delay after `accept` failed, for example because too many files are open.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// The routes that connections in reserved places may use.
const HEALTH_CHECKS: [&str; 2] = ["/healthz", "/readyz"];

/// Serves until `shutdown`. Then stops accepting connections and waits for requests in flight.
pub(crate) async fn listen(
    listener: TcpListener,
    tls: Option<Tls>,
    router: Router,
    limits: ConnectionLimits,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let builder = |keep_alive| {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .keep_alive(keep_alive)
            .header_read_timeout(Duration::from_secs(REQUEST_HEAD_S))
            .max_headers(REQUEST_HEAD_FIELDS)
            .max_buf_size(REQUEST_HEAD_BYTES);
        Arc::new(http)
    };
    let (http, reserved_http) = (builder(true), builder(false));
    let reserved_router = router.clone().layer(from_fn(health_checks_only));
    let places = ConnectionPlaces::new(limits);
    let tracker = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let Some(place) = take_place(&places, peer.ip()) else { continue };
                let (http, router) = match place.admission {
                    Admission::Full => (http.clone(), router.clone()),
                    Admission::HealthChecksOnly => (reserved_http.clone(), reserved_router.clone()),
                };
                let connection = Connection { http, router, shutdown: shutdown.clone(), place };
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

fn take_place(places: &ConnectionPlaces, peer: IpAddr) -> Option<ConnectionPlace> {
    let place = places.take(peer);
    match place.as_ref().map(|place| place.admission) {
        Some(Admission::Full) => {}
        Some(Admission::HealthChecksOnly) => {
            metrics::counter!("windlass_connections_refused_total").increment(1);
            tracing::debug!(%peer, "no connection is left for this peer; it gets health checks only");
        }
        None => {
            metrics::counter!("windlass_connections_refused_total").increment(1);
            tracing::debug!(%peer, "no connection is left; closing this one");
        }
    }
    place
}

struct Connection {
    http: Arc<http1::Builder>,
    router: Router,
    shutdown: CancellationToken,
    place: ConnectionPlace,
}

impl Connection {
    async fn run(self, stream: TcpStream, tls: Option<Tls>) {
        let admission = self.place.admission;
        let connection = self.handshake(stream, tls);
        match admission {
            Admission::Full => connection.await,
            Admission::HealthChecksOnly => {
                let limit = Duration::from_secs(RESERVED_CONNECTION_S);
                if tokio::time::timeout(limit, connection).await.is_err() {
                    tracing::debug!("a connection in a reserved place took too long");
                }
            }
        }
    }

    async fn handshake(self, stream: TcpStream, tls: Option<Tls>) {
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
        let stream = TokioIo::new(WriteTimeout::new(stream, Duration::from_secs(WRITE_IDLE_S)));
        let service = TowerToHyperService::new(self.router.clone());
        let mut connection = pin!(self.http.serve_connection(stream, service));
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
    }
}

/// Answers requests on connections in reserved places.
async fn health_checks_only(request: Request, next: Next) -> Response {
    if HEALTH_CHECKS.contains(&request.uri().path()) {
        next.run(request).await
    } else {
        ApiError::too_many_connections().into_response()
    }
}
