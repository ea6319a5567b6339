//! An incoming message: envelope, header fields and body.

use serde::Serialize;

/// Data of an event with source `email`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mail {
    /// Sender of the envelope. Empty for a bounce.
    pub from: String,
    /// Accepted recipients of the envelope.
    pub to: Vec<String>,
    pub subject: String,
    pub message_id: String,
    /// All header fields, unfolded, in order.
    pub headers: Vec<(String, String)>,
    /// Everything after the header, unparsed, including MIME parts.
    pub body: String,
}

impl Mail {
    pub(crate) fn read(from: String, to: Vec<String>, message: &[u8]) -> Self {
        let text = String::from_utf8_lossy(message).replace('\0', "\u{fffd}");
        // An empty line ends the header. If it is the first line, there is no header.
        let (head, body) = match text.strip_prefix("\r\n") {
            Some(body) => ("", body),
            None => text.split_once("\r\n\r\n").unwrap_or((text.as_str(), "")),
        };
        let mut headers: Vec<(String, String)> = Vec::new();
        for line in head.split("\r\n") {
            match (line.starts_with([' ', '\t']), headers.last_mut()) {
                (true, Some((_, value))) => {
                    value.push(' ');
                    value.push_str(line.trim());
                }
                _ => {
                    if let Some((name, value)) = line.split_once(':') {
                        headers.push((name.trim().to_owned(), value.trim().to_owned()));
                    }
                }
            }
        }
        let field = |wanted: &str| {
            let found = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted));
            found.map(|(_, value)| value.clone()).unwrap_or_default()
        };
        let (subject, message_id) = (field("subject"), field("message-id"));
        Self { from, to, subject, message_id, headers, body: body.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement T1.
    #[test]
    fn mail_headers_are_unfolded_and_the_body_is_unchanged() {
        let message =
            b"Subject: two\r\n lines\r\nX-A: 1\r\nX-A: 2\r\nMessage-ID: <1@x>\r\n\r\nHello\r\n\r\n  there\0\r\n";
        let mail = Mail::read("a@x".into(), vec!["b@y".into()], message);
        assert_eq!((mail.subject.as_str(), mail.message_id.as_str()), ("two lines", "<1@x>"));
        assert_eq!(mail.headers.len(), 4);
        assert_eq!(mail.body, "Hello\r\n\r\n  there\u{fffd}\r\n");
        assert_eq!(Mail::read(String::new(), Vec::new(), b"no header").body, "");
        let bare = Mail::read(String::new(), Vec::new(), b"\r\nSubject: no\r\n\r\nheader\r\n");
        assert_eq!((bare.subject.as_str(), bare.body.as_str()), ("", "Subject: no\r\n\r\nheader\r\n"));
    }
}
