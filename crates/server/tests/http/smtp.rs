//! Mail that comes in, over a socket as a sender sees it (T1).

use std::net::SocketAddr;
use std::process::Command;
use std::sync::{Arc, Mutex};

use domain::limits::{SMTP_MESSAGE_BYTES, SMTP_MESSAGES_PER_MINUTE, SMTP_MISTAKES, SMTP_SESSIONS_PER_PEER};
use server::smtp::{self, Mail, Mailroom, MailroomError};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Keeps what it takes; knows addresses that begin with `hook`; cannot take what is from `later@…`.
#[derive(Default)]
struct Room {
    taken: Mutex<Vec<Mail>>,
}

impl Mailroom for Room {
    fn knows(&self, address: String) -> std::pin::Pin<Box<dyn Future<Output = Result<bool, MailroomError>> + Send>> {
        Box::pin(async move { Ok(address.starts_with("hook")) })
    }

    fn take(&self, mail: Mail) -> std::pin::Pin<Box<dyn Future<Output = Result<(), MailroomError>> + Send>> {
        let answer = if mail.from.starts_with("later") { Err(MailroomError("no disk".into())) } else { Ok(()) };
        if answer.is_ok() {
            self.taken.lock().unwrap().push(mail);
        }
        Box::pin(async move { answer })
    }
}

struct Post {
    room: Arc<Room>,
    address: SocketAddr,
    stop: CancellationToken,
    _serving: JoinSet<()>,
}

impl Post {
    async fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (room, stop, mut serving) = (Arc::new(Room::default()), CancellationToken::new(), JoinSet::new());
        serving.spawn(smtp::serve(listener, room.clone(), stop.clone()));
        Self { room, address, stop, _serving: serving }
    }

    fn taken(&self) -> Vec<Mail> {
        self.room.taken.lock().unwrap().clone()
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

struct Sender {
    stream: BufReader<TcpStream>,
}

impl Sender {
    async fn connect(post: &Post) -> Self {
        Self { stream: BufReader::new(TcpStream::connect(post.address).await.unwrap()) }
    }

    async fn greeted(post: &Post) -> Self {
        let mut sender = Self::connect(post).await;
        assert_eq!(sender.hear().await, "220");
        assert_eq!(sender.say("EHLO here").await, "250");
        sender
    }

    /// The code of the next answer; empty when the other side has hung up.
    async fn hear(&mut self) -> String {
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

    async fn send(&mut self, bytes: &[u8]) {
        // Whoever was hung up on hears so by the next answer.
        let _gone = self.stream.get_mut().write_all(bytes).await;
    }

    async fn say(&mut self, line: &str) -> String {
        self.send(format!("{line}\r\n").as_bytes()).await;
        self.hear().await
    }

    async fn mail(&mut self, message: &[u8]) -> String {
        assert_eq!(self.say("MAIL FROM:<a@b.example>").await, "250");
        assert_eq!(self.say("RCPT TO:<hook@here.example>").await, "250");
        assert_eq!(self.say("DATA").await, "354");
        self.send(message).await;
        self.send(b"\r\n.\r\n").await;
        self.hear().await
    }
}

#[tokio::test]
async fn t1_a_mail_is_taken_whole_with_its_dots() {
    let post = Post::open().await;
    let mut sender = Sender::greeted(&post).await;
    assert_eq!(sender.mail(b"Subject: hi\r\nTo: x\r\n\r\n..dot\r\nline").await, "250");
    assert_eq!(sender.mail(b"Subject: two\r\n\r\n").await, "250", "another in the same session");
    assert_eq!(sender.say("QUIT").await, "221");
    let taken = post.taken();
    assert_eq!(
        (taken[0].from.as_str(), taken[0].to.as_slice()),
        ("a@b.example", &["hook@here.example".to_owned()][..])
    );
    assert_eq!((taken[0].subject.as_str(), taken[0].body.as_str()), ("hi", ".dot\r\nline\r\n"));
    assert_eq!(taken[1].subject, "two");
}

#[tokio::test]
async fn t1_what_is_not_for_us_is_too_large_or_cannot_be_kept_is_refused() {
    let post = Post::open().await;
    let mut sender = Sender::greeted(&post).await;
    assert_eq!(sender.say(&format!("MAIL FROM:<a@b> SIZE={}", SMTP_MESSAGE_BYTES + 1)).await, "552");
    assert_eq!(sender.say("DATA").await, "503");
    assert_eq!(sender.say("MAIL FROM:<a@b>").await, "250");
    assert_eq!(sender.say("RCPT TO:<root@here>").await, "550");
    assert_eq!(sender.say("RCPT TO:hook").await, "501");
    assert_eq!(sender.say("RSET").await, "250");
    let large = [b"x".repeat(998), b"\r\n".to_vec()].concat().repeat(SMTP_MESSAGE_BYTES / 1_000 + 2);
    assert_eq!(sender.mail(&large).await, "552");
    assert_eq!(sender.mail(b"Subject: small\r\n\r\n").await, "250", "the session goes on");
    assert_eq!(sender.say("MAIL FROM:<later@b>").await, "250");
    assert_eq!(sender.say("RCPT TO:<hook@x>").await, "250");
    assert_eq!(sender.say("DATA").await, "354");
    sender.send(b"x\r\n.\r\n").await;
    assert_eq!(sender.hear().await, "451", "the sender keeps it and comes again");
    assert_eq!(post.taken().len(), 1);
}

#[tokio::test]
async fn t1_a_second_message_cannot_be_smuggled_inside_the_first() {
    let post = Post::open().await;
    for end in ["\n.\n", "\n.\r\n", "\r.\r", "\r\n.\r", "\r\n.\n"] {
        let mut sender = Sender::greeted(&post).await;
        let smuggled = format!("Subject: one\r\n\r\nx{end}MAIL FROM:<evil@x>\r\nRCPT TO:<hook@x>\r\nDATA\r\nevil");
        assert_eq!(sender.mail(smuggled.as_bytes()).await, "550", "{end:?}");
    }
    assert_eq!(post.taken(), []);
}

#[tokio::test]
async fn t1_one_peer_gets_only_so_many_sessions_messages_and_mistakes() {
    let post = Post::open().await;
    let mut open = Vec::new();
    for _ in 0..SMTP_SESSIONS_PER_PEER {
        open.push(Sender::greeted(&post).await);
    }
    assert_eq!(Sender::connect(&post).await.hear().await, "421");
    let mut sender = open.pop().unwrap();
    for _ in 0..SMTP_MESSAGES_PER_MINUTE {
        assert_eq!(sender.say("MAIL FROM:<a@b>").await, "250");
        assert_eq!(sender.say("RSET").await, "250");
    }
    assert_eq!(sender.say("MAIL FROM:<a@b>").await, "451");
    for _ in 0..SMTP_MISTAKES {
        assert_eq!(sender.say("HELP ME").await, "502");
    }
    assert_eq!(sender.say("HELP ME").await, "421");
    assert_eq!(sender.hear().await, "", "the line is dead");
    let mut long = open.pop().unwrap();
    assert_eq!(long.say(&"x".repeat(100_000)).await, "500");
}

#[tokio::test]
async fn t1_swaks_delivers() {
    let post = Post::open().await;
    let server = post.address.to_string();
    let swaks = move || {
        let mut command = Command::new("swaks");
        command.args(["--server", &server, "--from", "robot@b.example", "--to", "hook+7@here.example"]);
        command.args(["--header", "Subject: from swaks", "--body", "Hello.\n.dots."]).output()
    };
    let output = tokio::task::spawn_blocking(swaks).await.unwrap().expect("swaks is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let taken = post.taken();
    assert_eq!((taken[0].subject.as_str(), taken[0].from.as_str()), ("from swaks", "robot@b.example"));
    assert!(taken[0].body.contains(".dots."), "{}", taken[0].body);
}
