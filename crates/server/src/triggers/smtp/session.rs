//! One SMTP session.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use domain::limits::{SMTP_ERRORS, SMTP_IDLE_S, SMTP_LINE_BYTES, SMTP_MESSAGE_BYTES, SMTP_RECIPIENTS};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::mail::Mail;
use super::rate::Peers;
use super::{Mailroom, log_event};

/// Refuses a session because too many are open.
pub(super) async fn refuse(mut stream: TcpStream) {
    let _ = tokio::time::timeout(
        Duration::from_secs(1),
        stream.write_all(b"421 4.7.0 Too many sessions, try again later\r\n"),
    )
    .await;
}

/// Why a session ended.
enum SessionEnd {
    Quit,
    Broken,
}

impl From<std::io::Error> for SessionEnd {
    fn from(_: std::io::Error) -> Self {
        Self::Broken
    }
}

struct Session<Stream> {
    stream: BufReader<Stream>,
    peer: IpAddr,
    mailroom: Arc<dyn Mailroom>,
    peers: Arc<Peers>,
    has_greeted: bool,
    /// Sender and recipients of the current message.
    from: Option<String>,
    to: Vec<String>,
    errors: usize,
    stop: CancellationToken,
}

/// Serves one session over a connection until it ends, or until `stop` is canceled between two commands.
pub(crate) async fn talk<Stream>(
    stream: Stream,
    peer: IpAddr,
    mailroom: Arc<dyn Mailroom>,
    peers: Arc<Peers>,
    stop: CancellationToken,
) where
    Stream: AsyncRead + AsyncWrite + Unpin,
{
    let mut session = Session {
        stream: BufReader::new(stream),
        peer,
        mailroom,
        peers,
        has_greeted: false,
        from: None,
        to: Vec::new(),
        errors: 0,
        stop,
    };
    log_event(peer, "session started");
    let end = session.run().await;
    log_event(peer, if matches!(end, Err(SessionEnd::Quit)) { "session ended" } else { "connection lost" });
}

impl<Stream: AsyncRead + AsyncWrite + Unpin> Session<Stream> {
    async fn run(&mut self) -> Result<(), SessionEnd> {
        self.reply("220 windlass ESMTP").await?;
        let stop = self.stop.clone();
        loop {
            let line = tokio::select! {
                line = self.line(SMTP_LINE_BYTES) => line?,
                () = stop.cancelled() => {
                    self.reply("421 4.3.2 Shutting down, try again later").await?;
                    return Err(SessionEnd::Quit);
                }
            };
            let Some(line) = line else {
                self.reply("500 5.5.2 Line too long").await?;
                return Err(SessionEnd::Quit);
            };
            let line = String::from_utf8_lossy(&line).into_owned();
            let (verb, rest) = line.split_once(' ').unwrap_or((&line, ""));
            match verb.to_ascii_uppercase().as_str() {
                "EHLO" => {
                    self.reset();
                    self.has_greeted = true;
                    self.reply(&format!(
                        "250-windlass\r\n250-SIZE {SMTP_MESSAGE_BYTES}\r\n250-8BITMIME\r\n250 ENHANCEDSTATUSCODES"
                    ))
                    .await?;
                }
                "HELO" => {
                    self.reset();
                    self.has_greeted = true;
                    self.reply("250 windlass").await?;
                }
                "MAIL" => self.mail(rest).await?,
                "RCPT" => self.rcpt(rest).await?,
                "DATA" => self.data().await?,
                "RSET" => {
                    self.reset();
                    self.reply("250 2.0.0 OK").await?;
                }
                "NOOP" => self.reply("250 2.0.0 OK").await?,
                "VRFY" => self.reply("252 2.1.5 Cannot verify; try RCPT").await?,
                "QUIT" => {
                    self.reply("221 2.0.0 Bye").await?;
                    return Err(SessionEnd::Quit);
                }
                _ => self.reply_error("502 5.5.1 Command not recognized").await?,
            }
        }
    }

    async fn mail(&mut self, rest: &str) -> Result<(), SessionEnd> {
        if !self.has_greeted || self.from.is_some() {
            return self.reply_error("503 5.5.1 Send EHLO, then one MAIL").await;
        }
        let Some((address, parameters)) = address(rest, "FROM:") else {
            return self.reply_error("501 5.1.7 Syntax: MAIL FROM:<address>").await;
        };
        let size = parameters.split(' ').find_map(|parameter| {
            let (name, value) = parameter.split_once('=')?;
            name.eq_ignore_ascii_case("SIZE").then(|| value.parse::<u64>().unwrap_or(u64::MAX))
        });
        if size.is_some_and(|size| size > SMTP_MESSAGE_BYTES as u64) {
            return self.reply("552 5.3.4 Message too large").await;
        }
        if !self.peers.may_send(self.peer) {
            return self.reply("451 4.7.1 Too many messages, try again later").await;
        }
        self.from = Some(address);
        self.reply("250 2.1.0 OK").await
    }

    async fn rcpt(&mut self, rest: &str) -> Result<(), SessionEnd> {
        if self.from.is_none() {
            return self.reply_error("503 5.5.1 Send MAIL first").await;
        }
        let Some((address, _)) = address(rest, "TO:").filter(|(address, _)| address.contains('@')) else {
            return self.reply_error("501 5.1.3 Syntax: RCPT TO:<address>").await;
        };
        if self.to.len() >= SMTP_RECIPIENTS {
            return self.reply("452 4.5.3 Too many recipients").await;
        }
        match self.mailroom.accepts(address.clone()).await {
            Ok(true) => {
                self.to.push(address);
                self.reply("250 2.1.5 OK").await
            }
            Ok(false) => self.reply_error("550 5.1.1 No trigger accepts mail for this address").await,
            Err(_) => self.reply("451 4.3.0 Cannot check the address now, try again later").await,
        }
    }

    async fn data(&mut self) -> Result<(), SessionEnd> {
        if self.to.is_empty() {
            return self.reply_error("503 5.5.1 Send RCPT first").await;
        }
        self.reply("354 End with a dot on a line of its own").await?;
        let message = self.message().await?;
        let (from, to) = (self.from.take().unwrap_or_default(), std::mem::take(&mut self.to));
        let message = match message {
            Message::Whole(message) => message,
            Message::TooLarge => return self.reply("552 5.3.4 Message too large").await,
            // Prevents SMTP smuggling: a relay might see an end of message here, and so two messages in one.
            Message::BareLine => return self.reply("550 5.6.0 Lines must end with CR LF").await,
        };
        match self.mailroom.deliver(Mail::read(from, to, &message)).await {
            Ok(()) => {
                metrics::counter!("windlass_mails_total").increment(1);
                self.reply("250 2.0.0 Accepted").await
            }
            Err(error) => {
                tracing::warn!(peer = %self.peer, %error, "cannot store a mail");
                self.reply("451 4.3.0 Cannot accept the message now, try again later").await
            }
        }
    }

    /// Reads a message to its end even if it is refused, because commands follow it.
    async fn message(&mut self) -> Result<Message, SessionEnd> {
        let (mut message, mut refusal) = (Vec::new(), None);
        // A dot ends the message only after a complete line: relays may treat a bare line end differently.
        let mut after_whole_line = true;
        loop {
            let Some(line) = self.raw_line(SMTP_MESSAGE_BYTES).await? else {
                return Err(SessionEnd::Broken);
            };
            if line == b".\r\n" && after_whole_line {
                return Ok(refusal.unwrap_or(Message::Whole(message)));
            }
            after_whole_line = line.ends_with(b"\r\n");
            if refusal.is_some() {
                continue;
            }
            let content = line.strip_prefix(b".").unwrap_or(&line);
            if !line.ends_with(b"\r\n") || content[..content.len().saturating_sub(2)].contains(&b'\r') {
                refusal = Some(Message::BareLine);
            } else if message.len() + content.len() > SMTP_MESSAGE_BYTES {
                refusal = Some(Message::TooLarge);
            } else {
                message.extend_from_slice(content);
            }
        }
    }

    /// Reads a command without its line end. None if the line is too long.
    async fn line(&mut self, limit: usize) -> Result<Option<Vec<u8>>, SessionEnd> {
        let Some(mut line) = self.raw_line(limit).await? else { return Ok(None) };
        while line.ends_with(b"\n") || line.ends_with(b"\r") {
            line.pop();
        }
        Ok(Some(line))
    }

    async fn raw_line(&mut self, limit: usize) -> Result<Option<Vec<u8>>, SessionEnd> {
        let mut line = Vec::new();
        let mut bounded = (&mut self.stream).take(limit as u64 + 1);
        let reading = bounded.read_until(b'\n', &mut line);
        match tokio::time::timeout(Duration::from_secs(SMTP_IDLE_S), reading).await {
            Err(_) => {
                self.reply("421 4.4.2 Idle timeout").await?;
                Err(SessionEnd::Broken)
            }
            Ok(read) => match read? {
                0 => Err(SessionEnd::Broken),
                _ if line.ends_with(b"\n") => Ok(Some(line)),
                _ if line.len() > limit => Ok(None),
                _ => Err(SessionEnd::Broken),
            },
        }
    }

    async fn reply(&mut self, text: &str) -> Result<(), SessionEnd> {
        self.stream.get_mut().write_all(format!("{text}\r\n").as_bytes()).await?;
        Ok(())
    }

    /// Replies with an error, and ends the session of a client that makes too many.
    async fn reply_error(&mut self, text: &str) -> Result<(), SessionEnd> {
        self.errors += 1;
        if self.errors > SMTP_ERRORS {
            self.reply("421 4.7.0 Too many errors").await?;
            return Err(SessionEnd::Quit);
        }
        self.reply(text).await
    }

    fn reset(&mut self) {
        self.from = None;
        self.to.clear();
    }
}

enum Message {
    Whole(Vec<u8>),
    TooLarge,
    BareLine,
}

/// Parses `FROM:<a@b> SIZE=1` into the address and the parameters after it.
fn address<'r>(rest: &'r str, keyword: &str) -> Option<(String, &'r str)> {
    let prefix = rest.get(..keyword.len()).filter(|prefix| prefix.eq_ignore_ascii_case(keyword))?;
    let rest = rest[prefix.len()..].trim_start();
    let (address, parameters) = rest.strip_prefix('<')?.split_once('>')?;
    let plain = address.len() <= 320 && !address.contains(|c: char| c.is_control() || c.is_whitespace());
    plain.then(|| (address.to_owned(), parameters.trim()))
}
