//! Closes a connection if its client does not read: a write that makes no progress for `WRITE_IDLE_S` fails. Called by
//! `listen` for every connection.
//!
//! Without it a client that stops reading would keep a response of many megabytes in memory. The buffers of the kernel accept
//! more only when the client has read a part of them, so a client that reads a few bytes at a time fails too.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

pub(crate) struct WriteTimeout<S> {
    stream: S,
    idle: Duration,
    /// Runs while a write waits.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteTimeout<S> {
    pub(crate) fn new(stream: S, idle: Duration) -> Self {
        Self { stream, idle, timer: None }
    }

    /// Returns what the stream returned, or an error if it has been pending for too long.
    fn or_timeout<T>(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.timer = None;
            return result;
        }
        let idle = self.idle;
        ready!(self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(idle))).as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.or_timeout(cx, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.or_timeout(cx, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(cx);
        self.or_timeout(cx, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.or_timeout(cx, result)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn a_write_fails_when_the_client_does_not_read() {
        let (server, _client) = duplex(8);
        let mut server = WriteTimeout::new(server, Duration::from_millis(20));
        let failed = server.write_all(&[0; 64]).await.expect_err("the buffer has 8 bytes");
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_write_continues_while_the_client_reads() {
        let (server, mut client) = duplex(8);
        let mut server = WriteTimeout::new(server, Duration::from_secs(3_600));
        let mut read = Vec::new();
        let (written, received) = tokio::join!(
            async {
                server.write_all(&[7; 64]).await?;
                server.shutdown().await
            },
            client.read_to_end(&mut read)
        );
        written.expect("the client reads");
        assert_eq!(received.expect("receives"), 64);
    }
}
