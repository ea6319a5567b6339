//! One conversation with a sender.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use domain::limits::{SMTP_LINE_BYTES, SMTP_MESSAGE_BYTES, SMTP_MISTAKES, SMTP_RECIPIENTS, SMTP_SILENCE_S};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::mail::Mail;
use super::rate::Peers;
use super::{Mailroom, told};

/// Too many are here already.
pub(super) async fn turn_away(mut stream: TcpStream) {
    let _ =
        tokio::time::timeout(Duration::from_secs(1), stream.write_all(b"421 4.7.0 Too many sessions, come later\r\n"))
            .await;
}

/// Why a conversation is over.
enum Over {
    Quit,
    Broken,
}

impl From<std::io::Error> for Over {
    fn from(_: std::io::Error) -> Self {
        Self::Broken
    }
}

struct Session<Stream> {
    stream: BufReader<Stream>,
    peer: IpAddr,
    mailroom: Arc<dyn Mailroom>,
    peers: Arc<Peers>,
    greeted: bool,
    /// The sender of the message that is being made, and who it is for.
    from: Option<String>,
    to: Vec<String>,
    mistakes: usize,
    stop: CancellationToken,
}

/// Over a connection, or whatever else speaks both ways, until it is over or told to stop between two commands.
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
        greeted: false,
        from: None,
        to: Vec::new(),
        mistakes: 0,
        stop,
    };
    told(peer, "begins");
    let over = session.run().await;
    told(peer, if matches!(over, Err(Over::Quit)) { "ends" } else { "breaks off" });
}

impl<Stream: AsyncRead + AsyncWrite + Unpin> Session<Stream> {
    async fn run(&mut self) -> Result<(), Over> {
        self.say("220 windlass ESMTP").await?;
        let stop = self.stop.clone();
        loop {
            let line = tokio::select! {
                line = self.line(SMTP_LINE_BYTES) => line?,
                () = stop.cancelled() => {
                    self.say("421 4.3.2 Stopping, come later").await?;
                    return Err(Over::Quit);
                }
            };
            let Some(line) = line else {
                self.say("500 5.5.2 Line too long").await?;
                return Err(Over::Quit);
            };
            let line = String::from_utf8_lossy(&line).into_owned();
            let (verb, rest) = line.split_once(' ').unwrap_or((&line, ""));
            match verb.to_ascii_uppercase().as_str() {
                "EHLO" => {
                    self.reset();
                    self.greeted = true;
                    self.say(&format!(
                        "250-windlass\r\n250-SIZE {SMTP_MESSAGE_BYTES}\r\n250-8BITMIME\r\n250 ENHANCEDSTATUSCODES"
                    ))
                    .await?;
                }
                "HELO" => {
                    self.reset();
                    self.greeted = true;
                    self.say("250 windlass").await?;
                }
                "MAIL" => self.mail(rest).await?,
                "RCPT" => self.rcpt(rest).await?,
                "DATA" => self.data().await?,
                "RSET" => {
                    self.reset();
                    self.say("250 2.0.0 Forgotten").await?;
                }
                "NOOP" => self.say("250 2.0.0 Still here").await?,
                "VRFY" => self.say("252 2.1.5 Send and see").await?,
                "QUIT" => {
                    self.say("221 2.0.0 Bye").await?;
                    return Err(Over::Quit);
                }
                _ => self.mistake("502 5.5.1 Not known here").await?,
            }
        }
    }

    async fn mail(&mut self, rest: &str) -> Result<(), Over> {
        if !self.greeted || self.from.is_some() {
            return self.mistake("503 5.5.1 Say EHLO, then one MAIL").await;
        }
        let Some((address, parameters)) = address(rest, "FROM:") else {
            return self.mistake("501 5.1.7 MAIL FROM:<address>").await;
        };
        let size = parameters.split(' ').find_map(|parameter| {
            let (name, value) = parameter.split_once('=')?;
            name.eq_ignore_ascii_case("SIZE").then(|| value.parse::<u64>().unwrap_or(u64::MAX))
        });
        if size.is_some_and(|size| size > SMTP_MESSAGE_BYTES as u64) {
            return self.say("552 5.3.4 Message too large").await;
        }
        if !self.peers.may_send(self.peer) {
            return self.say("451 4.7.1 Too many messages, come later").await;
        }
        self.from = Some(address);
        self.say("250 2.1.0 Go on").await
    }

    async fn rcpt(&mut self, rest: &str) -> Result<(), Over> {
        if self.from.is_none() {
            return self.mistake("503 5.5.1 MAIL first").await;
        }
        let Some((address, _)) = address(rest, "TO:").filter(|(address, _)| address.contains('@')) else {
            return self.mistake("501 5.1.3 RCPT TO:<address>").await;
        };
        if self.to.len() >= SMTP_RECIPIENTS {
            return self.say("452 4.5.3 Too many recipients").await;
        }
        match self.mailroom.knows(address.clone()).await {
            Ok(true) => {
                self.to.push(address);
                self.say("250 2.1.5 Known").await
            }
            Ok(false) => self.mistake("550 5.1.1 Nobody waits for mail to this address").await,
            Err(_) => self.say("451 4.3.0 Cannot look now, come later").await,
        }
    }

    async fn data(&mut self) -> Result<(), Over> {
        if self.to.is_empty() {
            return self.mistake("503 5.5.1 RCPT first").await;
        }
        self.say("354 End with a dot on a line of its own").await?;
        let message = self.message().await?;
        let (from, to) = (self.from.take().unwrap_or_default(), std::mem::take(&mut self.to));
        let message = match message {
            Message::Whole(message) => message,
            Message::TooLarge => return self.say("552 5.3.4 Message too large").await,
            // Whoever passed it on may see an end where we see none: two messages in one.
            Message::BareLine => return self.say("550 5.6.0 Lines must end with CR LF").await,
        };
        match self.mailroom.take(Mail::read(from, to, &message)).await {
            Ok(()) => {
                metrics::counter!("windlass_mails_total").increment(1);
                self.say("250 2.0.0 Taken").await
            }
            Err(error) => {
                tracing::warn!(peer = %self.peer, %error, "a mail could not be taken");
                self.say("451 4.3.0 Cannot be taken now, come later").await
            }
        }
    }

    /// Reads to the end in any case: what follows are commands again.
    async fn message(&mut self) -> Result<Message, Over> {
        let (mut message, mut fate) = (Vec::new(), None);
        // A dot ends the message only after a whole line: others along the way may count a bare one differently.
        let mut after_whole_line = true;
        loop {
            let Some(line) = self.raw_line(SMTP_MESSAGE_BYTES).await? else {
                return Err(Over::Broken);
            };
            if line == b".\r\n" && after_whole_line {
                return Ok(fate.unwrap_or(Message::Whole(message)));
            }
            after_whole_line = line.ends_with(b"\r\n");
            if fate.is_some() {
                continue;
            }
            let content = line.strip_prefix(b".").unwrap_or(&line);
            if !line.ends_with(b"\r\n") || content[..content.len().saturating_sub(2)].contains(&b'\r') {
                fate = Some(Message::BareLine);
            } else if message.len() + content.len() > SMTP_MESSAGE_BYTES {
                fate = Some(Message::TooLarge);
            } else {
                message.extend_from_slice(content);
            }
        }
    }

    /// A command without its end; nothing when it is too long.
    async fn line(&mut self, most: usize) -> Result<Option<Vec<u8>>, Over> {
        let Some(mut line) = self.raw_line(most).await? else { return Ok(None) };
        while line.ends_with(b"\n") || line.ends_with(b"\r") {
            line.pop();
        }
        Ok(Some(line))
    }

    async fn raw_line(&mut self, most: usize) -> Result<Option<Vec<u8>>, Over> {
        let mut line = Vec::new();
        let mut bounded = (&mut self.stream).take(most as u64 + 1);
        let reading = bounded.read_until(b'\n', &mut line);
        match tokio::time::timeout(Duration::from_secs(SMTP_SILENCE_S), reading).await {
            Err(_) => {
                self.say("421 4.4.2 You were silent for too long").await?;
                Err(Over::Broken)
            }
            Ok(read) => match read? {
                0 => Err(Over::Broken),
                _ if line.ends_with(b"\n") => Ok(Some(line)),
                _ if line.len() > most => Ok(None),
                _ => Err(Over::Broken),
            },
        }
    }

    async fn say(&mut self, words: &str) -> Result<(), Over> {
        self.stream.get_mut().write_all(format!("{words}\r\n").as_bytes()).await?;
        Ok(())
    }

    /// Whoever makes too many is a probe.
    async fn mistake(&mut self, words: &str) -> Result<(), Over> {
        self.mistakes += 1;
        if self.mistakes > SMTP_MISTAKES {
            self.say("421 4.7.0 Too many mistakes").await?;
            return Err(Over::Quit);
        }
        self.say(words).await
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

/// `FROM:<a@b> SIZE=1` gives the address and what follows it.
fn address<'r>(rest: &'r str, keyword: &str) -> Option<(String, &'r str)> {
    let given = rest.get(..keyword.len()).filter(|given| given.eq_ignore_ascii_case(keyword))?;
    let rest = rest[given.len()..].trim_start();
    let (address, parameters) = rest.strip_prefix('<')?.split_once('>')?;
    let plain = address.len() <= 320 && !address.contains(|c: char| c.is_control() || c.is_whitespace());
    plain.then(|| (address.to_owned(), parameters.trim()))
}
