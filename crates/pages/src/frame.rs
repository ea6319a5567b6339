//! What every page has around its content: where one is, who one is, what one may do.

use jiff::Timestamp;

use crate::assets;
use crate::html::{self, Markup};

/// The pages that the menu leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Overview,
    Jobs,
    Queues,
    Pools,
    Workers,
    Subjects,
    Failures,
    DeadLetters,
    Triggers,
    Deliveries,
    Runtimes,
    Signals,
    History,
    Tokens,
    System,
}

impl Place {
    pub const ALL: [Self; 15] = [
        Self::Overview,
        Self::Jobs,
        Self::Queues,
        Self::Pools,
        Self::Workers,
        Self::Subjects,
        Self::Failures,
        Self::DeadLetters,
        Self::Triggers,
        Self::Deliveries,
        Self::Runtimes,
        Self::Signals,
        Self::History,
        Self::Tokens,
        Self::System,
    ];

    pub fn label(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Jobs => "Jobs",
            Self::Queues => "Queues",
            Self::Pools => "Pools",
            Self::Workers => "Workers",
            Self::Subjects => "Subjects",
            Self::Failures => "Failures",
            Self::DeadLetters => "Dead letters",
            Self::Triggers => "Triggers",
            Self::Deliveries => "Deliveries",
            Self::Runtimes => "Runtimes",
            Self::Signals => "Signals",
            Self::History => "History",
            Self::Tokens => "Tokens",
            Self::System => "System",
        }
    }

    /// Its route.
    pub fn path(self) -> &'static str {
        match self {
            Self::Overview => "/",
            Self::Jobs => "/jobs",
            Self::Queues => "/queues",
            Self::Pools => "/pools",
            Self::Workers => "/workers",
            Self::Subjects => "/subjects",
            Self::Failures => "/failures",
            Self::DeadLetters => "/dead-letters",
            Self::Triggers => "/triggers",
            Self::Deliveries => "/deliveries",
            Self::Runtimes => "/runtimes",
            Self::Signals => "/signals",
            Self::History => "/history",
            Self::Tokens => "/tokens",
            Self::System => "/system",
        }
    }

    /// Its address as seen from the root of the pages.
    pub(crate) fn link(self) -> &'static str {
        &self.path()[1..]
    }

    /// The letter that leads there after `g`.
    pub(crate) fn key(self) -> char {
        match self {
            Self::Overview => 'o',
            Self::Jobs => 'j',
            Self::Queues => 'q',
            Self::Pools => 'p',
            Self::Workers => 'w',
            Self::Subjects => 's',
            Self::Failures => 'f',
            Self::DeadLetters => 'd',
            Self::Triggers => 't',
            Self::Deliveries => 'v',
            Self::Runtimes => 'r',
            Self::Signals => 'i',
            Self::History => 'h',
            Self::Tokens => 'k',
            Self::System => 'y',
        }
    }
}

/// What the reader may do. A control that one may not use is not shown; the routes check again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Can {
    pub operate: bool,
    pub enqueue: bool,
    pub read_artifacts: bool,
    pub read_logs: bool,
    pub manage_dead_letters: bool,
    pub manage_triggers: bool,
    pub manage_tokens: bool,
    pub manage_runtimes: bool,
}

#[derive(Clone, Debug)]
pub struct Frame {
    pub title: String,
    /// The way from this page to the root of all pages, so that a proxy may put them anywhere.
    pub root: String,
    pub here: Option<Place>,
    /// Those that the reader may open.
    pub places: Vec<Place>,
    pub who: String,
    /// Whether there is a session to end.
    pub signed_in: bool,
    pub can: Can,
    /// Unresolved dead letters, and whether there are more than were counted.
    pub dead_letters: Option<(usize, bool)>,
    pub now: Timestamp,
    pub release: &'static str,
}

impl Frame {
    pub(crate) fn assets(&self) -> &str {
        &assets::VERSION
    }

    /// The first page that is open to the reader: not everyone may see the overview.
    pub(crate) fn home(&self) -> &'static str {
        self.places.first().map_or("", |place| place.link())
    }

    /// Words that lead to an address below a page of the menu, for those who may open it.
    pub(crate) fn lead(&self, place: Place, address: &str, words: &str) -> Markup {
        let words = html::escape(words);
        match self.places.contains(&place) {
            true => Markup::new(format!("<a href=\"{}{}\">{words}</a>", self.root, html::escape(address))),
            false => Markup::new(words),
        }
    }

    pub(crate) fn subject(&self, subject: &str) -> Markup {
        self.lead(Place::Subjects, &format!("subjects/{}", html::segment(subject)), subject)
    }

    pub(crate) fn runtime(&self, runtime: &str) -> Markup {
        self.lead(Place::Runtimes, &format!("runtimes/{}", html::segment(runtime)), runtime)
    }

    pub(crate) fn trigger(&self, id: &uuid::Uuid, words: &str) -> Markup {
        self.lead(Place::Triggers, &format!("triggers/{id}"), words)
    }

    pub(crate) fn is_here(&self, place: &Place) -> bool {
        self.here == Some(*place)
    }
}

/// The way from a path of ours to the root.
pub fn root_of(path: &str) -> String {
    let depth = path.bytes().filter(|byte| *byte == b'/').count();
    if depth <= 1 { "./".into() } else { "../".repeat(depth - 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_find_their_root_from_any_depth() {
        assert_eq!(["/", "/jobs", "/jobs/x", "/a/b/c"].map(root_of), ["./", "./", "../", "../../"]);
    }

    #[test]
    fn no_two_pages_have_one_key() {
        let mut keys: Vec<char> = Place::ALL.iter().map(|place| place.key()).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), Place::ALL.len());
    }
}
