//! Mail: a whole conversation as it comes over the wire, and a message as it is read.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};

use domain::limits::SMTP_RECIPIENTS;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use crate::smtp::session;
use crate::smtp::{BoxFuture, Mail, Mailroom, MailroomError, Peers};

const DOMAIN: &str = ".example";

/// What a sender says, then silence. Every answer is one; no message is taken that did not end, no line of one ends in but
/// half a line end, where a relay before us might see two messages, and nobody gets mail who does not wait for it.
pub fn mail(data: &[u8]) {
    message(data);
    let room = Arc::new(Room::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let answers = runtime.expect("a runtime of one thread").block_on(talk(data, room.clone()));
    let answers = String::from_utf8(answers).expect("answers are ASCII");
    for answer in answers.split_terminator("\r\n") {
        let (code, words) = answer.split_at_checked(3).expect("an answer has a code");
        assert!(code.bytes().all(|byte| byte.is_ascii_digit()) && words.starts_with([' ', '-']), "{answer}");
    }
    let taken = room.taken.lock().expect("nobody panicked");
    assert_eq!(answers.matches("2.0.0 Taken\r\n").count(), taken.len());
    assert!(taken.len() <= data.windows(4).filter(|window| *window == b"\n.\r\n").count(), "a message without an end");
    for mail in taken.iter() {
        assert!((1..=SMTP_RECIPIENTS).contains(&mail.to.len()) && mail.to.iter().all(|to| to.ends_with(DOMAIN)));
        assert_eq!(mail.body.matches('\n').count(), mail.body.matches("\r\n").count());
        assert_eq!(mail.body.matches('\r').count(), mail.body.matches("\r\n").count());
    }
}

async fn talk(data: &[u8], room: Arc<Room>) -> Vec<u8> {
    // Room for all that can be said, so that neither side waits for the other.
    let (mut sender, ours) = tokio::io::duplex(32 * data.len() + 4_096);
    sender.write_all(data).await.expect("there is room");
    sender.shutdown().await.expect("a half is closed");
    session::talk(ours, IpAddr::V4(Ipv4Addr::LOCALHOST), room, Arc::new(Peers::default()), CancellationToken::new())
        .await;
    let mut answers = Vec::new();
    sender.read_to_end(&mut answers).await.expect("the other side has hung up");
    answers
}

/// The header ends with the first empty line, and no field holds the end of a line.
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
struct Room {
    taken: Mutex<Vec<Mail>>,
}

impl Mailroom for Room {
    fn knows(&self, address: String) -> BoxFuture<Result<bool, MailroomError>> {
        Box::pin(async move { Ok(address.ends_with(DOMAIN)) })
    }

    fn take(&self, mail: Mail) -> BoxFuture<Result<(), MailroomError>> {
        self.taken.lock().expect("nobody panicked").push(mail);
        Box::pin(async { Ok(()) })
    }
}
