//! Validated names.
//!
//! A [`Name`] (queue, kind, process) appears in metrics, URLs and shell commands and is plain ASCII. A [`Label`]
//! (affinity, subject, run, tag, key) is user text: any Unicode except invisible characters, which could be used to
//! fake listings.

use std::fmt;
use std::sync::Arc;

use crate::limits::{LABEL_BYTES, NAME_BYTES};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("must not be empty")]
    Empty,
    #[error("is {got} bytes long; at most {most} are allowed")]
    TooLong { got: usize, most: usize },
    #[error("contains {0:?}; allowed are letters, digits and . _ - : / @ + #")]
    Character(char),
    #[error("contains the invisible character U+{0:04X}")]
    Invisible(u32),
    #[error("must not start or end with whitespace")]
    Padded,
    #[error("must not be . or .., which cannot be part of a URL path")]
    Dots,
    #[error("must not begin with {INTERNAL_QUEUES}, which is reserved for internal queues")]
    Reserved,
    #[error("must not begin with {RUNTIME_SUBJECTS}, which is reserved for operations on runtimes")]
    ReservedSubject,
}

/// Prefix of the names of internal queues.
const INTERNAL_QUEUES: &str = "windlass.";
/// Prefix of the subjects of runtimes.
pub(crate) const RUNTIME_SUBJECTS: &str = "runtime/";

/// The name of a queue, a job kind or a process.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

impl Name {
    pub fn new(text: &str) -> Result<Self, NameError> {
        check_any(text, NAME_BYTES)?;
        match text.chars().find(|c| !(c.is_ascii_alphanumeric() || "._-:/@+#".contains(*c))) {
            Some(forbidden) => Err(NameError::Character(forbidden)),
            None => Ok(Self(text.into())),
        }
    }

    /// The name of a queue that users may enqueue to and claim from.
    pub fn of_queue(text: &str) -> Result<Self, NameError> {
        if text.starts_with(INTERNAL_QUEUES) { Err(NameError::Reserved) } else { Self::new(text) }
    }

    /// A name that was validated when it was stored.
    pub fn stored(text: &str) -> Self {
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// User text that identifies an affinity, a subject, a run, a tag or a key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(Arc<str>);

impl Label {
    pub fn new(text: &str) -> Result<Self, NameError> {
        check_any(text, LABEL_BYTES)?;
        if text.trim() != text {
            return Err(NameError::Padded);
        }
        match text.chars().find(|c| is_invisible(*c)) {
            Some(invisible) => Err(NameError::Invisible(invisible as u32)),
            None => Ok(Self(text.into())),
        }
    }

    /// A subject that users may enqueue work for. Other work on a runtime's subject would block operations on the
    /// runtime.
    pub fn of_subject(text: &str) -> Result<Self, NameError> {
        if text.starts_with(RUNTIME_SUBJECTS) { Err(NameError::ReservedSubject) } else { Self::new(text) }
    }

    /// A label that was validated when it was stored.
    pub fn stored(text: &str) -> Self {
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn check_any(text: &str, most: usize) -> Result<(), NameError> {
    if text.is_empty() {
        return Err(NameError::Empty);
    }
    if text.len() > most {
        return Err(NameError::TooLong { got: text.len(), most });
    }
    if matches!(text, "." | "..") {
        return Err(NameError::Dots);
    }
    Ok(())
}

/// Control characters, bidirectional overrides, zero-width characters, line separators, private use and noncharacters.
fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(c as u32,
            0x00AD | 0x034F | 0x061C | 0x115F..=0x1160 | 0x17B4..=0x17B5 | 0x180B..=0x180F | 0x200B..=0x200F
            | 0x2028..=0x202E | 0x2060..=0x206F | 0x3164 | 0xE000..=0xF8FF | 0xFE00..=0xFE0F | 0xFEFF
            | 0xFFA0 | 0xFFF0..=0xFFFB | 0xFDD0..=0xFDEF | 0xE0000..=0x10FFFF)
        || (c as u32) & 0xFFFE == 0xFFFE
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_name(text: &str, expected: Result<(), NameError>) {
        assert_eq!(Name::new(text).map(|_| ()), expected, "{text:?}");
    }

    #[test]
    fn names_are_plain_ascii() {
        check_name("image.scan", Ok(()));
        check_name("a/b:c@d+e#1_-", Ok(()));
        check_name("", Err(NameError::Empty));
        check_name("..", Err(NameError::Dots));
        check_name("...", Ok(()));
        check_name("a b", Err(NameError::Character(' ')));
        check_name("nul\0", Err(NameError::Character('\0')));
        check_name("<script>", Err(NameError::Character('<')));
        check_name("größe", Err(NameError::Character('ö')));
        check_name(&"x".repeat(129), Err(NameError::TooLong { got: 129, most: 128 }));
    }

    fn check_label(text: &str, expected: Result<(), NameError>) {
        assert_eq!(Label::new(text).map(|_| ()), expected, "{text:?}");
    }

    #[test]
    fn labels_are_any_visible_text() {
        check_label("llama3 70B (größte)", Ok(()));
        check_label("机器-7", Ok(()));
        check_label("a\u{202e}b", Err(NameError::Invisible(0x202e)));
        check_label("a\0b", Err(NameError::Invisible(0)));
        check_label("zero\u{200b}width", Err(NameError::Invisible(0x200b)));
        check_label(" padded", Err(NameError::Padded));
        check_label("", Err(NameError::Empty));
        check_label(".", Err(NameError::Dots));
    }
}
