//! A producer's connection that costs next to nothing, so that the server is measured and not its client: HTTP/1.1 by
//! hand, one request at a time, kept alive.

use anyhow::{Context, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// An answer longer than this is none of ours: to a producer, and with a page in it.
const ANSWER_BYTES: usize = 64 << 10;
const PAGE_BYTES: usize = 16 << 20;

pub(super) struct Connection {
    stream: TcpStream,
    host: String,
    buffer: Vec<u8>,
}

impl Connection {
    pub(super) async fn open(host: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(host).await.context("cannot reach the server")?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, host: host.to_owned(), buffer: Vec::with_capacity(1_024) })
    }

    /// Posts a job and returns once the server has said that it is accepted.
    pub(super) async fn post(&mut self, body: &str) -> anyhow::Result<()> {
        let request = format!(
            "POST /api/v1/jobs HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.host,
            body.len(),
        );
        self.expect(&request, 202).await
    }

    /// Reads what lies at a path and returns once all of it is here.
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

    /// Any request; gives the status and the body.
    pub(super) async fn ask(&mut self, method: &str, path: &str, body: &str) -> anyhow::Result<(u16, Vec<u8>)> {
        let kind = if body.is_empty() { "" } else { "content-type: application/json\r\n" };
        let (host, length) = (&self.host, body.len());
        let request =
            format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n{kind}content-length: {length}\r\n\r\n{body}");
        let status = self.exchange(&request, PAGE_BYTES).await?;
        let begin = self.buffer.windows(4).position(|four| four == b"\r\n\r\n").map_or(0, |end| end + 4);
        Ok((status, self.buffer[begin..].to_vec()))
    }

    async fn exchange(&mut self, request: &str, most: usize) -> anyhow::Result<u16> {
        self.stream.write_all(request.as_bytes()).await?;
        self.buffer.clear();
        loop {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                bail!("the server closed the connection");
            }
            if let Some(status) = whole(&self.buffer)? {
                return Ok(status.parse()?);
            }
            if self.buffer.len() > most {
                bail!("the server's answer does not end");
            }
        }
    }
}

/// Server-sent events as they come.
pub(super) struct Stream {
    stream: TcpStream,
    /// What has come and was not waited for yet.
    text: String,
}

impl Stream {
    pub(super) async fn open(host: &str, path: &str) -> anyhow::Result<Self> {
        let mut stream = TcpStream::connect(host).await.context("cannot reach the server")?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\naccept: text/event-stream\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        Ok(Self { stream, text: String::new() })
    }

    /// Reads on until this has come.
    pub(super) async fn until(&mut self, wanted: &str) -> anyhow::Result<()> {
        let mut some = [0; 4_096];
        while !self.text.contains(wanted) {
            let read = self.stream.read(&mut some).await?;
            if read == 0 {
                bail!("the server ended a stream: {}", self.text);
            }
            self.text.push_str(&String::from_utf8_lossy(&some[..read]));
        }
        self.text.clear();
        Ok(())
    }

    /// That the server has not ended it.
    pub(super) fn assert_open(&mut self) -> anyhow::Result<()> {
        let mut some = [0; 4_096];
        loop {
            match self.stream.try_read(&mut some) {
                Ok(0) => bail!("the server ended a stream whose job has not ended"),
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The status, once the answer is there to its last byte.
fn whole(answer: &[u8]) -> anyhow::Result<Option<&str>> {
    let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let head = std::str::from_utf8(&answer[..end])?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let length = length.context("the answer does not say how long it is")?;
    Ok((answer.len() >= end + 4 + length).then(|| head.split(' ').nth(1).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::whole;

    #[test]
    fn an_answer_is_whole_when_its_last_byte_is_there() {
        let answer = b"HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(whole(answer).expect("reads"), Some("202"));
        assert_eq!(whole(&answer[..answer.len() - 1]).expect("reads"), None);
        assert_eq!(whole(&answer[..20]).expect("reads"), None);
        assert!(whole(b"HTTP/1.1 202 Accepted\r\n\r\n").is_err());
    }
}
