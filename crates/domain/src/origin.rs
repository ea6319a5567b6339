//! What made a job, as one line of text in its row: nothing for a plain one, `trigger:…`, `script:…`, `replay:…`,
//! `process:…`, `call`, `operation`, `batch:…`.
//!
//! Written by whoever makes the job, read when it ends: what a failure leads to depends on it.

use std::fmt;

use uuid::Uuid;

use crate::id::{DeadLetterId, EventId, TriggerId};
use crate::trigger::{Source, queue};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A producer, by its own call.
    Plain,
    Trigger {
        trigger: TriggerId,
        cause: Cause,
    },
    /// The script of a trigger, which may make many.
    Script {
        trigger: TriggerId,
        cause: Cause,
    },
    /// A dead letter that a person played again. Its trigger is not named: what a person does is not the trigger's doing.
    Replay {
        letter: DeadLetterId,
        cause: Cause,
    },
    /// The scan of a process over its subjects. Its failure writes a backoff.
    Process(String),
    /// Someone waits for the answer.
    Call,
    /// An operation on a runtime: its own log says how it went.
    Operation,
    /// A line of a batch, by the name that its maker gave it. What became of it is told in the batch's files.
    Batch {
        batch: String,
        custom_id: String,
    },
}

/// The event at the beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    pub event: EventId,
    pub source: String,
    pub op: String,
}

/// Whether what an event starts leaves a dead letter when it fails for good. What handles a letter must not make another
/// (T8); what works the job of a queue fails that job, which leaves its own.
pub fn leaves_a_dead_letter(source: &str, op: &str) -> bool {
    source != "dead_letter" && (source, op) != (Source::Queue.as_str(), queue::JOB)
}

impl Origin {
    /// Anything that cannot be read was written by a newer program: it is treated as plain.
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

    /// As it is stored; nothing for a plain job.
    pub fn stored(&self) -> Option<String> {
        (*self != Self::Plain).then(|| self.to_string())
    }

    /// Whether a job of this origin that is out of retries becomes a dead letter (T6). A process makes its next job by
    /// itself, a caller has heard of the failure, a batch has a file for it, and what handles a dead letter must not make another (T8).
    pub fn leaves_a_dead_letter(&self) -> bool {
        match self {
            Self::Plain | Self::Replay { .. } => true,
            Self::Trigger { cause, .. } | Self::Script { cause, .. } => leaves_a_dead_letter(&cause.source, &cause.op),
            Self::Process(_) | Self::Call | Self::Operation | Self::Batch { .. } => false,
        }
    }

    /// The dead letter that this job is the handler of. The event of a dead letter has the letter's own id.
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
    fn an_origin_comes_back_as_it_was_written() {
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
        for odd in ["", "api", "trigger:", "trigger:x:y", "later:1"] {
            assert_eq!(Origin::parse(Some(odd)), Origin::Plain, "{odd}");
        }
    }

    #[test]
    fn t8_a_handler_of_dead_letters_never_makes_another() {
        let cause =
            |source: &str| Cause { event: EventId::new(Uuid::from_u128(8)), source: source.into(), op: "x".into() };
        let by = |source| Origin::Trigger { trigger: TriggerId::new(Uuid::from_u128(7)), cause: cause(source) };
        assert!(by("kv").leaves_a_dead_letter() && Origin::Plain.leaves_a_dead_letter());
        assert!(!by("dead_letter").leaves_a_dead_letter());
        assert!(!Origin::Call.leaves_a_dead_letter() && !Origin::Process("p".into()).leaves_a_dead_letter());
        assert_eq!(by("dead_letter").handles(), Some(DeadLetterId::new(Uuid::from_u128(8))));
        assert_eq!(by("kv").handles(), None);
        // What a script that handles a letter makes leaves none either, and is not the handler itself.
        let made = |source| Origin::Script { trigger: TriggerId::new(Uuid::from_u128(7)), cause: cause(source) };
        assert!(made("kv").leaves_a_dead_letter() && !made("dead_letter").leaves_a_dead_letter());
        assert_eq!(made("dead_letter").handles(), None);
        // A job that a trigger works leaves its own.
        assert!(!leaves_a_dead_letter("queue", "job") && leaves_a_dead_letter("queue", "paused"));
    }
}
