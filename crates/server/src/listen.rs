//! Connections: taken, shielded against those that dawdle, and served until told to stop.
//!
//! A connection costs a place until it ends. One that does not finish its head in time loses it, a head has bounds, and so
//! has the number of places: whoever opens thousands of connections and says nothing keeps nobody else waiting for long.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use domain::limits::{CONNECTIONS, HEAD_BYTES, HEAD_FIELDS, HEAD_S};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::tls::Tls;

/// How long to wait after the system could not give a connection, say because too many files are open.
const BREATHER: Duration = Duration::from_millis(100);

/// Serves until `shutdown`: then takes no more connections and lets the requests under way finish.
pub(crate) async fn listen(
    listener: TcpListener,
    tls: Option<Tls>,
    router: Router,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(HEAD_S))
        .max_headers(HEAD_FIELDS)
        .max_buf_size(HEAD_BYTES);
    let http = Arc::new(http);
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let tracker = TaskTracker::new();
    loop {
        let place = tokio::select! {
            () = shutdown.cancelled() => break,
            place = places.clone().acquire_owned() => place.map_err(io::Error::other)?,
        };
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let connection =
                    Connection { http: http.clone(), router: router.clone(), shutdown: shutdown.clone(), place };
                tracker.spawn(connection.begin(stream, tls.clone()));
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be taken");
                tokio::time::sleep(BREATHER).await;
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
    place: OwnedSemaphorePermit,
}

impl Connection {
    async fn begin(self, stream: TcpStream, tls: Option<Tls>) {
        // Answers are small and complete: waiting to fill a packet only delays them.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection keeps its delay");
        }
        let Some(tls) = tls else { return self.serve(stream).await };
        let greeting = tokio::time::timeout(Duration::from_secs(HEAD_S), tls.accept(stream));
        tokio::select! {
            () = self.shutdown.cancelled() => {}
            greeted = greeting => match greeted {
                Ok(Ok(stream)) => self.serve(stream).await,
                Ok(Err(error)) => tracing::debug!(%error, "a connection did not agree on TLS"),
                Err(_) => tracing::debug!("a connection took too long to agree on TLS"),
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
            tracing::debug!(%error, "a connection ended early");
        }
        let _until_here = &self.place;
    }
}
