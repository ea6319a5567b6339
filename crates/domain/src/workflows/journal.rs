//! The journal of a job: the rules by which a recorded operation changes it.
//!
//! An operation is identified by its key. The first record of a key counts, and every later one gets the recorded
//! answer. A worker that has the journal therefore never repeats a finished step.

use std::fmt;

use crate::limits::{JOURNAL_BYTES, JOURNAL_ENTRIES, JOURNAL_WARNING_PERCENT};

/// A kind of recorded operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JournalOp {
    /// Work of the handler, with its result or error.
    Step,
    /// A time.
    Sleep,
    /// A signal event.
    Event,
    /// A signal event that a person sends.
    Approval,
    /// The ends of jobs that the operation starts.
    Child,
    /// An event on a topic.
    Publish,
}

impl JournalOp {
    pub const ALL: [JournalOp; 6] = [Self::Step, Self::Sleep, Self::Event, Self::Approval, Self::Child, Self::Publish];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::Sleep => "sleep",
            Self::Event => "event",
            Self::Approval => "approval",
            Self::Child => "child",
            Self::Publish => "publish",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|op| op.as_str() == text)
    }
}

impl fmt::Display for JournalOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Key of the entry that the server records when a canceled job is to undo its steps.
pub const CANCEL_KEY: &str = "$cancel";

/// Why a journal refuses an operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    #[error("the journal has {JOURNAL_ENTRIES} entries, the maximum; continue in a new job")]
    TooManyEntries,
    #[error("the journal would have {bytes} bytes; the maximum is {JOURNAL_BYTES}; store large results as artifacts")]
    TooManyBytes { bytes: i64 },
    /// The worker asked for `strict`.
    #[error("the step was recorded with another input or operation: its digest is {recorded}, not {met}")]
    Drift { recorded: String, met: String },
    #[error("the key is recorded as the operation {recorded}, not {met}")]
    OtherOperation { recorded: JournalOp, met: JournalOp },
    #[error("the recorded results of this request exceed the maximum of {max} bytes; send fewer operations")]
    AnswerTooLarge { max: i64 },
}

/// Number and size of the entries of a journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalSize {
    pub entries: i64,
    pub bytes: i64,
}

impl JournalSize {
    /// The size with more entries and bytes, if the journal allows it.
    pub fn with(self, entries: i64, bytes: i64) -> Result<Self, JournalError> {
        let size = Self { entries: self.entries + entries, bytes: self.bytes + bytes };
        if size.entries > JOURNAL_ENTRIES {
            return Err(JournalError::TooManyEntries);
        }
        if size.bytes > JOURNAL_BYTES {
            return Err(JournalError::TooManyBytes { bytes: size.bytes });
        }
        Ok(size)
    }

    /// A sentence about a journal that is nearly full.
    pub fn warning(self) -> Option<String> {
        let is_near = |value: i64, max: i64| value * 100 >= max * JOURNAL_WARNING_PERCENT;
        if is_near(self.entries, JOURNAL_ENTRIES) {
            return Some(format!("the journal has {} of at most {JOURNAL_ENTRIES} entries", self.entries));
        }
        let mebibytes = |bytes: i64| bytes / (1 << 20);
        is_near(self.bytes, JOURNAL_BYTES).then(|| {
            let (now, max) = (mebibytes(self.bytes), mebibytes(JOURNAL_BYTES));
            format!("the journal has {now} of at most {max} MiB")
        })
    }
}

/// Returns true if a recorded operation and the one that was met have different digests. Without a digest on either side
/// nothing is known.
pub fn has_drifted(recorded: Option<&str>, met: Option<&str>) -> bool {
    matches!((recorded, met), (Some(recorded), Some(met)) if recorded != met)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_refuses_the_entry_after_the_last_and_the_byte_after_the_last() {
        let full = JournalSize { entries: JOURNAL_ENTRIES, bytes: JOURNAL_BYTES };
        assert_eq!(full.with(0, 0), Ok(full));
        assert_eq!(full.with(1, 0), Err(JournalError::TooManyEntries));
        assert_eq!(full.with(0, 1), Err(JournalError::TooManyBytes { bytes: JOURNAL_BYTES + 1 }));
    }

    #[test]
    fn a_journal_warns_from_four_fifths_of_either_limit() {
        let size = |entries, bytes| JournalSize { entries, bytes }.warning();
        assert_eq!(size(7_999, 0), None);
        assert_eq!(size(8_000, 0).as_deref(), Some("the journal has 8000 of at most 10000 entries"));
        assert_eq!(size(1, JOURNAL_BYTES * 4 / 5), None);
        assert_eq!(size(1, JOURNAL_BYTES * 4 / 5 + 1).as_deref(), Some("the journal has 51 of at most 64 MiB"));
    }

    #[test]
    fn only_two_different_digests_are_drift() {
        assert!(has_drifted(Some("a"), Some("b")));
        for (recorded, met) in [(Some("a"), Some("a")), (None, Some("b")), (Some("a"), None), (None, None)] {
            assert!(!has_drifted(recorded, met));
        }
    }
}
