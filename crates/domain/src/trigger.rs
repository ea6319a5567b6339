//! Which events a trigger listens to, and how deep one thing may lead to another (T1, T2, T5).

use std::collections::BTreeSet;
use std::fmt;

/// Where events come from.
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
}

impl Source {
    pub const ALL: [Source; 9] = [
        Self::Kv,
        Self::Cron,
        Self::Pubsub,
        Self::Queue,
        Self::Http,
        Self::Email,
        Self::Job,
        Self::Runtime,
        Self::DeadLetter,
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
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|source| source.as_str() == text)
    }
}

/// What happens to queues.
pub mod queue {
    pub const PAUSED: &str = "paused";
    pub const RESUMED: &str = "resumed";
    /// It was told something else than before.
    pub const CHANGED: &str = "changed";
    /// Its last job has ended.
    pub const DRAINED: &str = "drained";
    /// An attempt of one of its jobs, for the trigger that works them.
    pub const JOB: &str = "job";

    /// Those that a filter may name.
    pub const OPS: [&str; 4] = [PAUSED, RESUMED, CHANGED, DRAINED];
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// `*` matches everything, `orders:*` whatever begins with `orders:`, anything else itself.
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
    #[error("may have a * at its end only")]
    Star,
    #[error("is {got} bytes long; at most {most} are allowed", most = crate::limits::LABEL_BYTES)]
    TooLong { got: usize },
    #[error("must not hold control characters")]
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

/// What a trigger wants of an event: attributes that match, and one of these operations (none named: any).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pattern {
    pub attributes: Vec<(&'static str, Glob)>,
    pub ops: BTreeSet<String>,
}

impl Pattern {
    /// An attribute that the event does not have matches `*` only.
    pub fn matches<'e>(&self, op: &str, attribute: impl Fn(&str) -> Option<&'e str>) -> bool {
        let op = self.ops.is_empty() || self.ops.contains(op);
        op && self.attributes.iter().all(|(name, glob)| match attribute(name) {
            Some(value) => glob.matches(value),
            None => *glob == Glob::Any,
        })
    }
}

/// How deep what this event starts would be, or nothing when that is past `most`: then it is a loop (T5).
pub const fn next_depth(event_depth: i32, most: i32) -> Option<i32> {
    let next = event_depth.saturating_add(1);
    if event_depth < 0 || next > most { None } else { Some(next) }
}

/// What becomes of the slots of a schedule that passed while nobody could fire them (T10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    /// They are gone.
    Skip,
    /// The last of them fires, once.
    Coalesce,
    /// Each of them fires, up to a bound.
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

    #[test]
    fn t2_globs_are_everything_a_prefix_or_the_thing_itself() {
        let matches = |glob: &str, text: &str| Glob::parse(glob).unwrap().matches(text);
        assert!(matches("*", "") && matches("*", "anything"));
        assert!(matches("orders:*", "orders:7") && matches("orders:*", "orders:"));
        assert!(!matches("orders:*", "orders") && !matches("orders:*", "reorders:7"));
        assert!(matches("orders", "orders") && !matches("orders", "orders:7"));
        for (bad, error) in [("", GlobError::Empty), ("a*b", GlobError::Star), ("**", GlobError::Star)] {
            assert_eq!(Glob::parse(bad), Err(error), "{bad}");
        }
    }

    #[test]
    fn t2_no_operation_named_is_any_and_a_missing_attribute_matches_a_star_only() {
        let pattern = |glob: &str, ops: &[&str]| Pattern {
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

    #[test]
    fn t5_the_sixteenth_step_runs_and_the_seventeenth_does_not() {
        assert_eq!(next_depth(0, 16), Some(1));
        assert_eq!(next_depth(15, 16), Some(16));
        assert_eq!(next_depth(16, 16), None);
        assert_eq!(next_depth(i32::MAX, 16), None);
        assert_eq!(next_depth(-1, 16), None);
    }

    proptest! {
        #[test]
        fn t2_a_glob_prints_as_it_was_read_and_matches_what_its_definition_says(
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

        #[test]
        fn t5_every_chain_ends(most in 0..64i32) {
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
