//! The origin of a job, stored as text in its row: null for a plain job, else `trigger:…`, `script:…`, `replay:…`,
//! `process:…`, `call`, `operation` or `batch:…`.
//!
//! Written when the job is created and read when it ends, because the consequences of a failure depend on it.

use std::fmt;

use uuid::Uuid;

use crate::id::{DeadLetterId, EventId, TriggerId};
use crate::triggers::trigger::{Source, queue};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Enqueued by a producer.
    Plain,
    Trigger {
        trigger: TriggerId,
        cause: Cause,
    },
    /// Enqueued by a trigger's script, which may create several jobs.
    Script {
        trigger: TriggerId,
        cause: Cause,
    },
    /// A replayed dead letter. Its trigger is not recorded: a person's replay does not count as the trigger's work.
    Replay {
        letter: DeadLetterId,
        cause: Cause,
    },
    /// Created by the scan of a process. A failure writes a backoff.
    Process(String),
    /// A synchronous call: a client waits for the result.
    Call,
    /// An operation on a runtime. Its outcome is recorded in the operation log.
    Operation,
    /// A line of a batch, with the client's `custom_id`. Its outcome is written to the batch's files.
    Batch {
        batch: String,
        custom_id: String,
    },
}

/// The event that caused the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    pub event: EventId,
    pub source: String,
    pub op: String,
}

/// True if the work that an event starts creates a dead letter when it fails for good. The handler of a dead letter
/// must not create another one. A queue trigger fails the job that it works on, and that job creates the dead letter.
pub fn creates_dead_letter(source: &str, op: &str) -> bool {
    source != "dead_letter" && (source, op) != (Source::Queue.as_str(), queue::JOB)
}

impl Origin {
    /// Returns `Plain` for text that this version cannot parse, because a newer version wrote it.
    pub fn parse(text: Option<&str>) -> Self {
        text.and_then(Self::read).unwrap_or(Self::Plain)
    }

    fn read(text: &str) -> Option<Self> {
        let (what, rest) = text.split_once(':').unwrap_or((text, ""));
        let caused = || {
            let mut parts = rest.splitn(4, ':');
            let id = Uuid::try_parse(parts.next()?).ok()?;
            let event = EventId::new(Uuid::try_parse(parts.next()?).ok()?);
            let (source, op) = (parts.next()?.to_owned(), parts.next()?.to_owned());
            Some((id, Cause { event, source, op }))
        };
        match what {
            "trigger" => caused().map(|(id, cause)| Self::Trigger { trigger: TriggerId::new(id), cause }),
            "script" => caused().map(|(id, cause)| Self::Script { trigger: TriggerId::new(id), cause }),
            "replay" => caused().map(|(id, cause)| Self::Replay { letter: DeadLetterId::new(id), cause }),
            "process" => Some(Self::Process(rest.to_owned())),
            "call" => Some(Self::Call),
            "operation" => Some(Self::Operation),
            "batch" => {
                let (batch, custom_id) = rest.split_once(':')?;
                Some(Self::Batch { batch: batch.to_owned(), custom_id: custom_id.to_owned() })
            }
            _ => None,
        }
    }

    /// The stored form. `None` for a plain job.
    pub fn stored(&self) -> Option<String> {
        (*self != Self::Plain).then(|| self.to_string())
    }

    /// True if a job of this origin becomes a dead letter when it runs out of attempts. A process creates its next job
    /// by itself, a caller receives the error, a batch has an error file, and the handler of a dead letter must not
    /// create another.
    pub fn creates_dead_letter(&self) -> bool {
        match self {
            Self::Plain | Self::Replay { .. } => true,
            Self::Trigger { cause, .. } | Self::Script { cause, .. } => creates_dead_letter(&cause.source, &cause.op),
            Self::Process(_) | Self::Call | Self::Operation | Self::Batch { .. } => false,
        }
    }

    /// The dead letter that this job handles. The event of a dead letter has the id of the letter.
    pub fn handles(&self) -> Option<DeadLetterId> {
        match self {
            Self::Trigger { cause, .. } if cause.source == "dead_letter" => Some(DeadLetterId::new(cause.event.uuid())),
            _ => None,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => f.write_str("api"),
            Self::Trigger { trigger, cause: Cause { event, source, op } } => {
                write!(f, "trigger:{trigger}:{event}:{source}:{op}")
            }
            Self::Script { trigger, cause: Cause { event, source, op } } => {
                write!(f, "script:{trigger}:{event}:{source}:{op}")
            }
            Self::Replay { letter, cause: Cause { event, source, op } } => {
                write!(f, "replay:{letter}:{event}:{source}:{op}")
            }
            Self::Process(name) => write!(f, "process:{name}"),
            Self::Call => f.write_str("call"),
            Self::Operation => f.write_str("operation"),
            Self::Batch { batch, custom_id } => write!(f, "batch:{batch}:{custom_id}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_round_trips_through_its_stored_text() {
        let id = Uuid::from_u128(7);
        let cause = Cause { event: EventId::new(Uuid::from_u128(8)), source: "kv".into(), op: "set".into() };
        for origin in [
            Origin::Trigger { trigger: TriggerId::new(id), cause: cause.clone() },
            Origin::Script { trigger: TriggerId::new(id), cause: cause.clone() },
            Origin::Replay { letter: DeadLetterId::new(id), cause },
            Origin::Process("scan:all".into()),
            Origin::Call,
            Origin::Operation,
            Origin::Batch { batch: "batch_7".into(), custom_id: "a:b".into() },
        ] {
            assert_eq!(Origin::parse(origin.stored().as_deref()), origin);
        }
        assert_eq!(Origin::Plain.stored(), None);
        for unknown in ["", "api", "trigger:", "trigger:x:y", "later:1"] {
            assert_eq!(Origin::parse(Some(unknown)), Origin::Plain, "{unknown}");
        }
    }

    /// Requirement T8.
    #[test]
    fn a_dead_letter_handler_creates_no_dead_letter() {
        let cause =
            |source: &str| Cause { event: EventId::new(Uuid::from_u128(8)), source: source.into(), op: "x".into() };
        let by = |source| Origin::Trigger { trigger: TriggerId::new(Uuid::from_u128(7)), cause: cause(source) };
        assert!(by("kv").creates_dead_letter() && Origin::Plain.creates_dead_letter());
        assert!(!by("dead_letter").creates_dead_letter());
        assert!(!Origin::Call.creates_dead_letter() && !Origin::Process("p".into()).creates_dead_letter());
        assert_eq!(by("dead_letter").handles(), Some(DeadLetterId::new(Uuid::from_u128(8))));
        assert_eq!(by("kv").handles(), None);
        // A job that such a script creates makes no dead letter either, and is not itself the handler.
        let made = |source| Origin::Script { trigger: TriggerId::new(Uuid::from_u128(7)), cause: cause(source) };
        assert!(made("kv").creates_dead_letter() && !made("dead_letter").creates_dead_letter());
        assert_eq!(made("dead_letter").handles(), None);
        // A job that a queue trigger works on creates its own dead letter.
        assert!(!creates_dead_letter("queue", "job") && creates_dead_letter("queue", "paused"));
    }
}
