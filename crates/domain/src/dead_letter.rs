//! What becomes of work that failed for good (T6, T7).

use std::fmt;

/// How a dead letter was dealt with. Set once, with who and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resolution {
    /// New work was made from it.
    Replayed,
    /// A person decided that nothing is to be done.
    Ignored,
    /// The target of a dead-letter trigger took care of it.
    HandledByScript,
    /// The target of a dead-letter trigger failed; there is no second dead letter (T8).
    HandlerFailed,
}

impl Resolution {
    pub const ALL: [Resolution; 4] = [Self::Replayed, Self::Ignored, Self::HandledByScript, Self::HandlerFailed];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Replayed => "replayed",
            Self::Ignored => "ignored",
            Self::HandledByScript => "handled_by_script",
            Self::HandlerFailed => "handler_failed",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|resolution| resolution.as_str() == text)
    }

    /// Whether the letter may still be replayed: a handler that failed is no reason to give the work up.
    pub const fn may_be_replayed(resolution: Option<Self>) -> bool {
        matches!(resolution, None | Some(Self::HandlerFailed))
    }
}

impl fmt::Display for Resolution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
