//! Fails the read of a request body if the client sends nothing for `BODY_IDLE_S`, or sends less than `BODY_BYTES_PER_S` on
//! average. Called by `access::auth` for every request.
//!
//! Only the time in which a read waits for the client counts. The timer starts only when a read has to wait: most bodies
//! arrive together with the request head, and setting and canceling a timer for each of them would cost more than reading
//! them.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Error;
use axum::body::{Body, HttpBody};
use bytes::Bytes;
use domain::limits::{BODY_BYTES_PER_S, BODY_IDLE_S};
use hyper::body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep};

pub(crate) fn with_timeout(body: Body) -> Body {
    let idle = Duration::from_secs(BODY_IDLE_S);
    if body.is_end_stream() { body } else { Body::new(BodyTimeout::new(body, idle, idle, BODY_BYTES_PER_S as f64)) }
}

struct BodyTimeout {
    body: Body,
    idle: Duration,
    /// The rate counts when reads have waited for longer than this.
    slow_after: Duration,
    bytes_per_s: f64,
    bytes: usize,
    /// How long finished reads waited in all.
    waited: Duration,
    /// The read that waits: since when, and the timer of `idle`.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl BodyTimeout {
    fn new(body: Body, idle: Duration, slow_after: Duration, bytes_per_s: f64) -> Self {
        Self { body, idle, slow_after, bytes_per_s, bytes: 0, waited: Duration::ZERO, waiting: None }
    }

    fn is_too_slow(&self) -> bool {
        self.waited > self.slow_after && (self.bytes as f64) < self.waited.as_secs_f64() * self.bytes_per_s
    }
}

fn timed_out() -> Poll<Option<Result<Frame<Bytes>, Error>>> {
    Poll::Ready(Some(Err(Error::new(std::io::Error::from(std::io::ErrorKind::TimedOut)))))
}

impl HttpBody for BodyTimeout {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            if let Some((since, _)) = self.waiting.take() {
                self.waited += since.elapsed();
            }
            if let Some(Ok(frame)) = &frame {
                self.bytes += frame.data_ref().map_or(0, Bytes::len);
            }
            return if frame.is_some() && self.is_too_slow() { timed_out() } else { Poll::Ready(frame) };
        }
        let idle = self.idle;
        let (_, timer) = self.waiting.get_or_insert_with(|| (Instant::now(), Box::pin(tokio::time::sleep(idle))));
        match timer.as_mut().poll(cx) {
            Poll::Ready(()) => timed_out(),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};
    use tokio_util::io::ReaderStream;

    use super::*;

    const NEVER: Duration = Duration::from_secs(3_600);

    /// A body, and the stream that its client writes to.
    fn body(idle: Duration, slow_after: Duration, bytes_per_s: f64) -> (Body, DuplexStream) {
        let (client, server) = duplex(64);
        let body = Body::from_stream(ReaderStream::new(server));
        (Body::new(BodyTimeout::new(body, idle, slow_after, bytes_per_s)), client)
    }

    #[tokio::test]
    async fn a_body_that_trickles_fails() {
        let (body, mut client) = body(NEVER, Duration::from_millis(20), 1e9);
        let mut ticks = tokio::time::interval(Duration::from_millis(5));
        let trickle = async move {
            for _ in 0..100 {
                ticks.tick().await;
                if client.write_all(b"x").await.is_err() {
                    break;
                }
            }
        };
        let (read, ()) = tokio::join!(to_bytes(body, 1 << 20), trickle);
        assert!(read.is_err(), "the body ends after half a second, and is too slow long before");
    }

    #[tokio::test]
    async fn a_slow_body_with_enough_bytes_is_read() {
        let (body, mut client) = body(NEVER, NEVER, 1e9);
        let send = async {
            for _ in 0..10 {
                client.write_all(b"x").await.expect("writes");
                tokio::task::yield_now().await;
            }
            drop(client);
        };
        let (read, ()) = tokio::join!(to_bytes(body, 1 << 20), send);
        assert_eq!(read.expect("reads").len(), 10);
    }

    #[tokio::test]
    async fn a_silent_body_fails() {
        let (body, _client) = body(Duration::from_millis(20), NEVER, 0.0);
        assert!(to_bytes(body, 1 << 20).await.is_err());
    }
}
