//! A minimal HTTP/1.1 client with keep-alive and one request at a time, so that the benchmark measures the server and
//! not its client.

use anyhow::{Context, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Limits for responses: to a producer, and with a page.
const ANSWER_BYTES: usize = 64 << 10;
const PAGE_BYTES: usize = 16 << 20;

pub(super) struct RawConnection {
    stream: TcpStream,
    host: String,
    buffer: Vec<u8>,
}

impl RawConnection {
    pub(super) async fn open(host: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(host).await.context("cannot reach the server")?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, host: host.to_owned(), buffer: Vec::with_capacity(1_024) })
    }

    /// Enqueues a job and returns after the server has accepted it.
    pub(super) async fn post(&mut self, body: &str) -> anyhow::Result<()> {
        let request = format!(
            "POST /api/v1/jobs HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.host,
            body.len(),
        );
        self.expect(&request, 202).await
    }

    /// Requests a path and reads the complete response.
    pub(super) async fn get(&mut self, path: &str) -> anyhow::Result<()> {
        let request = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n\r\n", self.host);
        self.expect(&request, 200).await
    }

    async fn expect(&mut self, request: &str, expected: u16) -> anyhow::Result<()> {
        let status = self.exchange(request, ANSWER_BYTES).await?;
        if status != expected {
            bail!("the server answered {status}");
        }
        Ok(())
    }

    /// Sends any request and returns the status and the body.
    pub(super) async fn ask(&mut self, method: &str, path: &str, body: &str) -> anyhow::Result<(u16, Vec<u8>)> {
        let kind = if body.is_empty() { "" } else { "content-type: application/json\r\n" };
        let (host, length) = (&self.host, body.len());
        let request =
            format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n{kind}content-length: {length}\r\n\r\n{body}");
        let status = self.exchange(&request, PAGE_BYTES).await?;
        let begin = self.buffer.windows(4).position(|four| four == b"\r\n\r\n").map_or(0, |end| end + 4);
        Ok((status, self.buffer[begin..].to_vec()))
    }

    async fn exchange(&mut self, request: &str, max_bytes: usize) -> anyhow::Result<u16> {
        self.stream.write_all(request.as_bytes()).await?;
        self.buffer.clear();
        loop {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                bail!("the server closed the connection");
            }
            if let Some(status) = complete_status(&self.buffer)? {
                return Ok(status.parse()?);
            }
            if self.buffer.len() > max_bytes {
                bail!("the response exceeds {max_bytes} bytes");
            }
        }
    }
}

/// A stream of server-sent events.
pub(super) struct EventStream {
    stream: TcpStream,
    /// Received text that was not waited for yet.
    text: String,
}

impl EventStream {
    pub(super) async fn open(host: &str, path: &str) -> anyhow::Result<Self> {
        let mut stream = TcpStream::connect(host).await.context("cannot reach the server")?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\naccept: text/event-stream\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        Ok(Self { stream, text: String::new() })
    }

    /// Reads until the text `expected` was received.
    pub(super) async fn until(&mut self, expected: &str) -> anyhow::Result<()> {
        let mut some = [0; 4_096];
        while !self.text.contains(expected) {
            let read = self.stream.read(&mut some).await?;
            if read == 0 {
                bail!("the server closed a stream: {}", self.text);
            }
            self.text.push_str(&String::from_utf8_lossy(&some[..read]));
        }
        self.text.clear();
        Ok(())
    }

    /// Returns an error if the server has closed the stream.
    pub(super) fn assert_open(&mut self) -> anyhow::Result<()> {
        let mut some = [0; 4_096];
        loop {
            match self.stream.try_read(&mut some) {
                Ok(0) => bail!("the server closed the stream of an unfinished job"),
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The status, once the response is complete.
fn complete_status(answer: &[u8]) -> anyhow::Result<Option<&str>> {
    let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let head = std::str::from_utf8(&answer[..end])?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let length = length.context("the response has no content-length")?;
    Ok((answer.len() >= end + 4 + length).then(|| head.split(' ').nth(1).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::complete_status;

    #[test]
    fn a_response_is_complete_at_its_last_byte() {
        let answer = b"HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(complete_status(answer).expect("reads"), Some("202"));
        assert_eq!(complete_status(&answer[..answer.len() - 1]).expect("reads"), None);
        assert_eq!(complete_status(&answer[..20]).expect("reads"), None);
        assert!(complete_status(b"HTTP/1.1 202 Accepted\r\n\r\n").is_err());
    }
}
