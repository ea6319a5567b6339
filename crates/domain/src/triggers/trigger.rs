//! Triggers: event sources and filters, the depth limit for chains of triggers, and the policy for missed schedule
//! slots.

use std::collections::BTreeSet;
use std::fmt;

/// The source of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    Kv,
    Cron,
    Pubsub,
    Queue,
    Http,
    Email,
    Job,
    Runtime,
    DeadLetter,
    Run,
}

impl Source {
    pub const ALL: [Source; 10] = [
        Self::Kv,
        Self::Cron,
        Self::Pubsub,
        Self::Queue,
        Self::Http,
        Self::Email,
        Self::Job,
        Self::Runtime,
        Self::DeadLetter,
        Self::Run,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kv => "kv",
            Self::Cron => "cron",
            Self::Pubsub => "pubsub",
            Self::Queue => "queue",
            Self::Http => "http",
            Self::Email => "email",
            Self::Job => "job",
            Self::Runtime => "runtime",
            Self::DeadLetter => "dead_letter",
            Self::Run => "run",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|source| source.as_str() == text)
    }
}

/// Events of queues.
pub mod queue {
    pub const PAUSED: &str = "paused";
    pub const RESUMED: &str = "resumed";
    /// Its settings changed.
    pub const CHANGED: &str = "changed";
    /// Its last unfinished job ended.
    pub const DRAINED: &str = "drained";
    /// An attempt of one of its jobs, for the queue trigger that works on them.
    pub const JOB: &str = "job";

    /// The operations that a filter may name.
    pub const OPS: [&str; 4] = [PAUSED, RESUMED, CHANGED, DRAINED];
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A pattern for text: `*` matches everything, `orders:*` every text with this prefix, any other text itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Glob {
    Any,
    Prefix(String),
    Exact(String),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GlobError {
    #[error("must not be empty")]
    Empty,
    #[error("may contain * only at its end")]
    Star,
    #[error("is {got} bytes long; at most {most} are allowed", most = crate::limits::LABEL_BYTES)]
    TooLong { got: usize },
    #[error("must not contain control characters")]
    Control,
}

impl Glob {
    pub fn parse(text: &str) -> Result<Self, GlobError> {
        if text.is_empty() {
            return Err(GlobError::Empty);
        }
        if text.len() > crate::limits::LABEL_BYTES {
            return Err(GlobError::TooLong { got: text.len() });
        }
        if text.chars().any(char::is_control) {
            return Err(GlobError::Control);
        }
        let (stem, star) = match text.strip_suffix('*') {
            Some(stem) => (stem, true),
            None => (text, false),
        };
        match (stem, star) {
            (stem, _) if stem.contains('*') => Err(GlobError::Star),
            ("", _) => Ok(Self::Any),
            (stem, true) => Ok(Self::Prefix(stem.into())),
            (stem, false) => Ok(Self::Exact(stem.into())),
        }
    }

    pub fn matches(&self, text: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Prefix(prefix) => text.starts_with(prefix.as_str()),
            Self::Exact(exact) => text == exact,
        }
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Prefix(prefix) => write!(f, "{prefix}*"),
            Self::Exact(exact) => f.write_str(exact),
        }
    }
}

/// The filter of a trigger: attributes that must match, and operations (none: any).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventPattern {
    pub attributes: Vec<(&'static str, Glob)>,
    pub ops: BTreeSet<String>,
}

impl EventPattern {
    /// A missing attribute matches only `*`.
    pub fn matches<'e>(&self, op: &str, attribute: impl Fn(&str) -> Option<&'e str>) -> bool {
        let op = self.ops.is_empty() || self.ops.contains(op);
        op && self.attributes.iter().all(|(name, glob)| match attribute(name) {
            Some(value) => glob.matches(value),
            None => *glob == Glob::Any,
        })
    }
}

/// Returns the depth of what this event starts. `None` if it exceeds `most`: the chain is then treated as a loop.
pub const fn next_depth(event_depth: i32, most: i32) -> Option<i32> {
    let next = event_depth.saturating_add(1);
    if event_depth < 0 || next > most { None } else { Some(next) }
}

/// What happens to schedule slots that passed while no node could fire them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    /// None fires.
    Skip,
    /// The last one fires, once.
    Coalesce,
    /// Each one fires, up to `CATCH_UP_SLOTS`.
    CatchUp,
}

impl Missed {
    pub const ALL: [Missed; 3] = [Self::Skip, Self::Coalesce, Self::CatchUp];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Coalesce => "coalesce",
            Self::CatchUp => "catch_up",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|missed| missed.as_str() == text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Requirement T2.
    #[test]
    fn a_glob_is_a_star_a_prefix_or_an_exact_text() {
        let matches = |glob: &str, text: &str| Glob::parse(glob).unwrap().matches(text);
        assert!(matches("*", "") && matches("*", "anything"));
        assert!(matches("orders:*", "orders:7") && matches("orders:*", "orders:"));
        assert!(!matches("orders:*", "orders") && !matches("orders:*", "reorders:7"));
        assert!(matches("orders", "orders") && !matches("orders", "orders:7"));
        for (bad, error) in [("", GlobError::Empty), ("a*b", GlobError::Star), ("**", GlobError::Star)] {
            assert_eq!(Glob::parse(bad), Err(error), "{bad}");
        }
    }

    /// Requirement T2.
    #[test]
    fn no_operation_matches_any_and_a_missing_attribute_matches_only_a_star() {
        let pattern = |glob: &str, ops: &[&str]| EventPattern {
            attributes: vec![("topic", Glob::parse(glob).unwrap())],
            ops: ops.iter().map(ToString::to_string).collect(),
        };
        let topic = |name: &str| (name == "topic").then_some("a");
        assert!(pattern("a", &[]).matches("set", topic));
        assert!(pattern("a", &["set", "delete"]).matches("set", topic));
        assert!(!pattern("a", &["delete"]).matches("set", topic));
        assert!(!pattern("b", &[]).matches("set", topic));
        assert!(pattern("*", &[]).matches("set", |_| None));
        assert!(!pattern("a*", &[]).matches("set", |_| None));
    }

    /// Requirement T5.
    #[test]
    fn the_trigger_depth_ends_at_the_limit() {
        assert_eq!(next_depth(0, 16), Some(1));
        assert_eq!(next_depth(15, 16), Some(16));
        assert_eq!(next_depth(16, 16), None);
        assert_eq!(next_depth(i32::MAX, 16), None);
        assert_eq!(next_depth(-1, 16), None);
    }

    proptest! {
        /// Requirement T2.
        #[test]
        fn a_glob_round_trips_as_text_and_matches_its_definition(
            stem in "[a-z:.]{0,6}", star: bool, text in "[a-z:.]{0,8}"
        ) {
            let source = if star { format!("{stem}*") } else { stem.clone() };
            match Glob::parse(&source) {
                Ok(glob) => {
                    prop_assert_eq!(glob.to_string(), source);
                    let expected = if star { text.starts_with(&stem) } else { text == stem };
                    prop_assert_eq!(glob.matches(&text), expected);
                }
                Err(error) => prop_assert_eq!((error, source.as_str()), (GlobError::Empty, "")),
            }
        }

        /// Requirement T5.
        #[test]
        fn every_trigger_chain_ends_at_the_maximum_depth(most in 0..64i32) {
            let mut depth = Some(0);
            let mut steps = 0;
            while let Some(at) = depth.and_then(|at| next_depth(at, most)) {
                depth = Some(at);
                steps += 1;
            }
            prop_assert_eq!(steps, most);
        }
    }
}
