//! A body that says nothing for long counts as broken off.
//!
//! The clock runs only while something is waited for: most bodies arrive with their head, and a timer that is set and taken
//! back for each of them would cost more than reading them.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Error;
use axum::body::{Body, HttpBody};
use bytes::Bytes;
use domain::limits::BODY_IDLE_S;
use hyper::body::{Frame, SizeHint};
use tokio::time::Sleep;

pub(crate) fn patient(body: Body) -> Body {
    if body.is_end_stream() { body } else { Body::new(Patient { body, waiting: None }) }
}

struct Patient {
    body: Body,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl HttpBody for Patient {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            self.waiting = None;
            return Poll::Ready(frame);
        }
        let patience = || Box::pin(tokio::time::sleep(Duration::from_secs(BODY_IDLE_S)));
        ready!(self.waiting.get_or_insert_with(patience).as_mut().poll(cx));
        Poll::Ready(Some(Err(Error::new(std::io::Error::from(std::io::ErrorKind::TimedOut)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
