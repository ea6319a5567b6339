//! The resolution of dead letters: work that failed for good.

use std::fmt;

/// How a dead letter was resolved. Set once, with the principal and the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resolution {
    /// New work was created from it.
    Replayed,
    /// A person decided to take no action.
    Ignored,
    /// A script resolved it, or a trigger that declares `handles` succeeded.
    HandledByScript,
    /// A trigger that declares `handles` failed. This creates no second dead letter.
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

    /// True if the letter may still be replayed, also after a handler has handled it or failed.
    pub const fn may_be_replayed(resolution: Option<Self>) -> bool {
        matches!(resolution, None | Some(Self::HandledByScript | Self::HandlerFailed))
    }
}

impl fmt::Display for Resolution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
