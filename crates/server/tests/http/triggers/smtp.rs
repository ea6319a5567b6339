//! Incoming mail over SMTP, from the view of a sender.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::{Arc, Mutex};

use domain::limits::{SMTP_ERRORS, SMTP_MESSAGE_BYTES, SMTP_MESSAGES_PER_MINUTE, SMTP_SESSIONS_PER_PEER};
use server::triggers::smtp;
use server::triggers::smtp::{Mail, Mailroom, MailroomError};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// A mailroom that stores mail in memory. It accepts addresses that begin with `hook`, and fails for mail from
/// `later@…`.
#[derive(Default)]
struct TestMailroom {
    mails: Mutex<Vec<Mail>>,
}

impl Mailroom for TestMailroom {
    fn accepts(&self, address: String) -> std::pin::Pin<Box<dyn Future<Output = Result<bool, MailroomError>> + Send>> {
        Box::pin(async move { Ok(address.starts_with("hook")) })
    }

    fn deliver(&self, mail: Mail) -> std::pin::Pin<Box<dyn Future<Output = Result<(), MailroomError>> + Send>> {
        let result = if mail.from.starts_with("later") { Err(MailroomError("no disk".into())) } else { Ok(()) };
        if result.is_ok() {
            self.mails.lock().unwrap().push(mail);
        }
        Box::pin(async move { result })
    }
}

struct TestServer {
    mailroom: Arc<TestMailroom>,
    address: SocketAddr,
    stop: CancellationToken,
    _serving: JoinSet<()>,
}

impl TestServer {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (mailroom, stop, mut serving) = (Arc::<TestMailroom>::default(), CancellationToken::new(), JoinSet::new());
        serving.spawn(smtp::serve(listener, mailroom.clone(), stop.clone()));
        Self { mailroom, address, stop, _serving: serving }
    }

    fn mails(&self) -> Vec<Mail> {
        self.mailroom.mails.lock().unwrap().clone()
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

struct Sender {
    stream: BufReader<TcpStream>,
}

impl Sender {
    async fn connect(server: &TestServer) -> Self {
        Self { stream: BufReader::new(TcpStream::connect(server.address).await.unwrap()) }
    }

    async fn greeted(server: &TestServer) -> Self {
        let mut sender = Self::connect(server).await;
        assert_eq!(sender.reply().await, "220");
        assert_eq!(sender.command("EHLO here").await, "250");
        sender
    }

    /// Reads the next reply and returns its code, or an empty string if the server closed the connection.
    async fn reply(&mut self) -> String {
        loop {
            let mut line = String::new();
            if self.stream.read_line(&mut line).await.unwrap_or(0) == 0 {
                return String::new();
            }
            if line.as_bytes().get(3) != Some(&b'-') {
                return line[..3].to_owned();
            }
        }
    }

    async fn write(&mut self, bytes: &[u8]) {
        // A closed connection is detected by the next reply.
        let _closed = self.stream.get_mut().write_all(bytes).await;
    }

    async fn command(&mut self, line: &str) -> String {
        self.write(format!("{line}\r\n").as_bytes()).await;
        self.reply().await
    }

    async fn mail(&mut self, message: &[u8]) -> String {
        assert_eq!(self.command("MAIL FROM:<a@b.example>").await, "250");
        assert_eq!(self.command("RCPT TO:<hook@here.example>").await, "250");
        assert_eq!(self.command("DATA").await, "354");
        self.write(message).await;
        self.write(b"\r\n.\r\n").await;
        self.reply().await
    }
}

/// Requirement T1.
#[tokio::test]
async fn a_mail_is_received_complete_with_dot_unstuffing() {
    let server = TestServer::start().await;
    let mut sender = Sender::greeted(&server).await;
    assert_eq!(sender.mail(b"Subject: hi\r\nTo: x\r\n\r\n..dot\r\nline").await, "250");
    assert_eq!(sender.mail(b"Subject: two\r\n\r\n").await, "250", "a session can send several mails");
    assert_eq!(sender.command("QUIT").await, "221");
    let mails = server.mails();
    assert_eq!(
        (mails[0].from.as_str(), mails[0].to.as_slice()),
        ("a@b.example", &["hook@here.example".to_owned()][..])
    );
    assert_eq!((mails[0].subject.as_str(), mails[0].body.as_str()), ("hi", ".dot\r\nline\r\n"));
    assert_eq!(mails[1].subject, "two");
}

/// Requirement T1.
#[tokio::test]
async fn mail_for_unknown_recipients_too_large_or_unstorable_is_rejected() {
    let server = TestServer::start().await;
    let mut sender = Sender::greeted(&server).await;
    assert_eq!(sender.command(&format!("MAIL FROM:<a@b> SIZE={}", SMTP_MESSAGE_BYTES + 1)).await, "552");
    assert_eq!(sender.command("DATA").await, "503");
    assert_eq!(sender.command("MAIL FROM:<a@b>").await, "250");
    assert_eq!(sender.command("RCPT TO:<root@here>").await, "550");
    assert_eq!(sender.command("RCPT TO:hook").await, "501");
    assert_eq!(sender.command("RSET").await, "250");
    let large = [b"x".repeat(998), b"\r\n".to_vec()].concat().repeat(SMTP_MESSAGE_BYTES / 1_000 + 2);
    assert_eq!(sender.mail(&large).await, "552");
    assert_eq!(sender.mail(b"Subject: small\r\n\r\n").await, "250", "the session continues");
    assert_eq!(sender.command("MAIL FROM:<later@b>").await, "250");
    assert_eq!(sender.command("RCPT TO:<hook@x>").await, "250");
    assert_eq!(sender.command("DATA").await, "354");
    sender.write(b"x\r\n.\r\n").await;
    assert_eq!(sender.reply().await, "451", "the sender must retry later");
    assert_eq!(server.mails().len(), 1);
}

/// Requirement T1.
#[tokio::test]
async fn smtp_smuggling_is_prevented() {
    let server = TestServer::start().await;
    for end in ["\n.\n", "\n.\r\n", "\r.\r", "\r\n.\r", "\r\n.\n"] {
        let mut sender = Sender::greeted(&server).await;
        let smuggled = format!("Subject: one\r\n\r\nx{end}MAIL FROM:<evil@x>\r\nRCPT TO:<hook@x>\r\nDATA\r\nevil");
        assert_eq!(sender.mail(smuggled.as_bytes()).await, "550", "{end:?}");
    }
    assert_eq!(server.mails(), []);
}

/// Requirement T1.
#[tokio::test]
async fn sessions_messages_and_errors_per_peer_are_limited() {
    let server = TestServer::start().await;
    let mut open = Vec::new();
    for _ in 0..SMTP_SESSIONS_PER_PEER {
        open.push(Sender::greeted(&server).await);
    }
    assert_eq!(Sender::connect(&server).await.reply().await, "421");
    let mut sender = open.pop().unwrap();
    for _ in 0..SMTP_MESSAGES_PER_MINUTE {
        assert_eq!(sender.command("MAIL FROM:<a@b>").await, "250");
        assert_eq!(sender.command("RSET").await, "250");
    }
    assert_eq!(sender.command("MAIL FROM:<a@b>").await, "451");
    for _ in 0..SMTP_ERRORS {
        assert_eq!(sender.command("HELP ME").await, "502");
    }
    assert_eq!(sender.command("HELP ME").await, "421");
    assert_eq!(sender.reply().await, "", "the connection is closed");
    let mut long = open.pop().unwrap();
    assert_eq!(long.command(&"x".repeat(100_000)).await, "500");
}

/// Requirement T1.
#[tokio::test]
async fn swaks_delivers_a_mail() {
    let server = TestServer::start().await;
    let address = server.address.to_string();
    let swaks = move || {
        let mut command = Command::new("swaks");
        command.args(["--server", &address, "--from", "robot@b.example", "--to", "hook+7@here.example"]);
        command.args(["--header", "Subject: from swaks", "--body", "Hello.\n.dots."]).output()
    };
    let output = tokio::task::spawn_blocking(swaks).await.unwrap().expect("swaks is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let mails = server.mails();
    assert_eq!((mails[0].subject.as_str(), mails[0].from.as_str()), ("from swaks", "robot@b.example"));
    assert!(mails[0].body.contains(".dots."), "{}", mails[0].body);
}
