//! The frame around every page: navigation, the acting principal and its permissions.

use jiff::Timestamp;

use crate::assets;
use crate::html::{self, Markup};

/// The pages of the navigation menu.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DashboardPage {
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

impl DashboardPage {
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

    /// The page's route.
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

    /// The address relative to the root of the pages.
    pub(crate) fn link(self) -> &'static str {
        &self.path()[1..]
    }

    /// The key that opens the page after `g`.
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

/// What the principal may do. Controls that it may not use are not rendered; the routes check the rights again.
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
    /// The relative path from this page to the root of the pages, so that a proxy can serve them under any path.
    pub root: String,
    pub current: Option<DashboardPage>,
    /// The pages that the principal may open.
    pub pages: Vec<DashboardPage>,
    pub principal: String,
    /// True if there is a session to end.
    pub signed_in: bool,
    pub can: Can,
    /// The number of unresolved dead letters, and true if there are more than were counted.
    pub dead_letters: Option<(usize, bool)>,
    pub now: Timestamp,
    pub release: &'static str,
}

impl Frame {
    pub(crate) fn assets(&self) -> &str {
        &assets::VERSION
    }

    /// The first page that the principal may open. Not every principal may see the overview.
    pub(crate) fn home(&self) -> &'static str {
        self.pages.first().map_or("", |page| page.link())
    }

    /// Renders `text` as a link below a page of the menu if the principal may open that page, else as plain text.
    pub(crate) fn link(&self, page: DashboardPage, address: &str, text: &str) -> Markup {
        let text = html::escape(text);
        match self.pages.contains(&page) {
            true => Markup::new(format!("<a href=\"{}{}\">{text}</a>", self.root, html::escape(address))),
            false => Markup::new(text),
        }
    }

    pub(crate) fn subject(&self, subject: &str) -> Markup {
        self.link(DashboardPage::Subjects, &format!("subjects/{}", html::segment(subject)), subject)
    }

    pub(crate) fn runtime(&self, runtime: &str) -> Markup {
        self.link(DashboardPage::Runtimes, &format!("runtimes/{}", html::segment(runtime)), runtime)
    }

    pub(crate) fn trigger(&self, id: &uuid::Uuid, text: &str) -> Markup {
        self.link(DashboardPage::Triggers, &format!("triggers/{id}"), text)
    }

    pub(crate) fn is_current(&self, page: &DashboardPage) -> bool {
        self.current == Some(*page)
    }
}

/// The relative path from a page at `path` to the root of the pages.
pub fn root_of(path: &str) -> String {
    let depth = path.bytes().filter(|byte| *byte == b'/').count();
    if depth <= 1 { "./".into() } else { "../".repeat(depth - 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_finds_its_root_from_any_depth() {
        assert_eq!(["/", "/jobs", "/jobs/x", "/a/b/c"].map(root_of), ["./", "./", "../", "../../"]);
    }

    #[test]
    fn each_page_has_a_unique_key() {
        let mut keys: Vec<char> = DashboardPage::ALL.iter().map(|page| page.key()).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), DashboardPage::ALL.len());
    }
}
