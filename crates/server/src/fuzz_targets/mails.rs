//! Fuzz target for the SMTP server and the mail parser.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};

use domain::limits::SMTP_RECIPIENTS;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use crate::triggers::smtp::session;
use crate::triggers::smtp::{BoxFuture, Mail, Mailroom, MailroomError, Peers};

const DOMAIN: &str = ".example";

/// Input: everything that the client sends. Every reply must be well formed. No message may be accepted without its end
/// mark, no line may end in a bare CR or LF (prevents SMTP smuggling: a relay might see two messages), and mail goes to
/// existing recipients only.
pub fn mail(data: &[u8]) {
    message(data);
    let mailroom = Arc::new(TestMailroom::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let answers = runtime.expect("a runtime of one thread").block_on(talk(data, mailroom.clone()));
    let answers = String::from_utf8(answers).expect("answers are ASCII");
    for answer in answers.split_terminator("\r\n") {
        let (code, text) = answer.split_at_checked(3).expect("an answer has a code");
        assert!(code.bytes().all(|byte| byte.is_ascii_digit()) && text.starts_with([' ', '-']), "{answer}");
    }
    let accepted = mailroom.accepted.lock().expect("lock poisoned");
    assert_eq!(answers.matches("2.0.0 Accepted\r\n").count(), accepted.len());
    assert!(
        accepted.len() <= data.windows(4).filter(|window| *window == b"\n.\r\n").count(),
        "a message without an end"
    );
    for mail in accepted.iter() {
        assert!((1..=SMTP_RECIPIENTS).contains(&mail.to.len()) && mail.to.iter().all(|to| to.ends_with(DOMAIN)));
        assert_eq!(mail.body.matches('\n').count(), mail.body.matches("\r\n").count());
        assert_eq!(mail.body.matches('\r').count(), mail.body.matches("\r\n").count());
    }
}

async fn talk(data: &[u8], mailroom: Arc<TestMailroom>) -> Vec<u8> {
    // Large enough for the whole dialogue, so that neither side blocks on the other.
    let (mut sender, server) = tokio::io::duplex(32 * data.len() + 4_096);
    sender.write_all(data).await.expect("the buffer is large enough");
    sender.shutdown().await.expect("the write half closes");
    session::talk(
        server,
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        mailroom,
        Arc::new(Peers::default()),
        CancellationToken::new(),
    )
    .await;
    let mut answers = Vec::new();
    sender.read_to_end(&mut answers).await.expect("the server closed the connection");
    answers
}

/// The header ends at the first empty line, and no header field contains a line end.
fn message(data: &[u8]) {
    let mail = Mail::read("a@b.example".into(), vec!["c@d.example".into()], data);
    let text = String::from_utf8_lossy(data).replace('\0', "\u{fffd}");
    let lines: Vec<&str> = text.split("\r\n").collect();
    let body =
        lines.iter().position(|line| line.is_empty()).map_or_else(String::new, |end| lines[end + 1..].join("\r\n"));
    assert_eq!(mail.body, body);
    assert!(mail.headers.iter().all(|(name, value)| !name.contains(':') && !value.contains("\r\n")));
    let field = |wanted: &str| mail.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted));
    assert_eq!(field("subject").map_or("", |(_, value)| value), mail.subject);
}

#[derive(Default)]
struct TestMailroom {
    accepted: Mutex<Vec<Mail>>,
}

impl Mailroom for TestMailroom {
    fn accepts(&self, address: String) -> BoxFuture<Result<bool, MailroomError>> {
        Box::pin(async move { Ok(address.ends_with(DOMAIN)) })
    }

    fn deliver(&self, mail: Mail) -> BoxFuture<Result<(), MailroomError>> {
        self.accepted.lock().expect("lock poisoned").push(mail);
        Box::pin(async { Ok(()) })
    }
}
