//! Fails the read of a request body if the client sends nothing for `BODY_IDLE_S`. Called by `access::auth` for every
//! request.
//!
//! The timer starts only when a read has to wait. Most bodies arrive together with the request head, and setting and
//! canceling a timer for each of them would cost more than reading them.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Error;
use axum::body::{Body, HttpBody};
use bytes::Bytes;
use domain::limits::BODY_IDLE_S;
use hyper::body::{Frame, SizeHint};
use tokio::time::Sleep;

pub(crate) fn with_idle_timeout(body: Body) -> Body {
    if body.is_end_stream() { body } else { Body::new(BodyIdleTimeout { body, timer: None }) }
}

struct BodyIdleTimeout {
    body: Body,
    timer: Option<Pin<Box<Sleep>>>,
}

impl HttpBody for BodyIdleTimeout {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            self.timer = None;
            return Poll::Ready(frame);
        }
        let new_timer = || Box::pin(tokio::time::sleep(Duration::from_secs(BODY_IDLE_S)));
        ready!(self.timer.get_or_insert_with(new_timer).as_mut().poll(cx));
        Poll::Ready(Some(Err(Error::new(std::io::Error::from(std::io::ErrorKind::TimedOut)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
