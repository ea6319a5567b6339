//! The frame around every page: navigation, breadcrumb, the acting principal and its permissions.

use jiff::Timestamp;

use crate::html::{self, Markup};
use crate::{assets, icons};

/// The pages of the navigation menu.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DashboardPage {
    Overview,
    Jobs,
    Queues,
    Pools,
    Workers,
    Runs,
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

/// The groups of the navigation menu. They are the groups of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageGroup {
    /// Pages about everything; the group has no heading.
    Home,
    Queue,
    Workflows,
    Fleet,
    Signals,
    Triggers,
    Runtimes,
    Access,
    System,
}

impl PageGroup {
    const ALL: [Self; 9] = [
        Self::Home,
        Self::Queue,
        Self::Workflows,
        Self::Fleet,
        Self::Signals,
        Self::Triggers,
        Self::Runtimes,
        Self::Access,
        Self::System,
    ];

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Home => "",
            Self::Queue => "Queue",
            Self::Workflows => "Workflows",
            Self::Fleet => "Fleet",
            Self::Signals => "Signals",
            Self::Triggers => "Triggers",
            Self::Runtimes => "Runtimes",
            Self::Access => "Access",
            Self::System => "System",
        }
    }
}

impl DashboardPage {
    /// In the order of the menu: group by group.
    pub const ALL: [Self; 16] = [
        Self::Overview,
        Self::Jobs,
        Self::Queues,
        Self::Workers,
        Self::Runs,
        Self::Subjects,
        Self::Signals,
        Self::Failures,
        Self::Triggers,
        Self::Deliveries,
        Self::DeadLetters,
        Self::Runtimes,
        Self::Pools,
        Self::Tokens,
        Self::History,
        Self::System,
    ];

    pub(crate) fn group(self) -> PageGroup {
        match self {
            Self::Overview => PageGroup::Home,
            Self::Jobs | Self::Queues | Self::Workers => PageGroup::Queue,
            Self::Runs => PageGroup::Workflows,
            Self::Subjects => PageGroup::Fleet,
            Self::Signals | Self::Failures => PageGroup::Signals,
            Self::Triggers | Self::Deliveries | Self::DeadLetters => PageGroup::Triggers,
            Self::Runtimes | Self::Pools => PageGroup::Runtimes,
            Self::Tokens | Self::History => PageGroup::Access,
            Self::System => PageGroup::System,
        }
    }

    pub(crate) fn icon(self) -> Markup {
        icons::draw(match self {
            Self::Overview => icons::GRID,
            Self::Jobs => icons::LIST,
            Self::Queues => icons::LAYERS,
            Self::Workers => icons::PROCESSOR,
            Self::Runs => icons::BRANCH,
            Self::Subjects => icons::SERVER,
            Self::Signals => icons::PULSE,
            Self::Failures => icons::WARNING,
            Self::Triggers => icons::BOLT,
            Self::Deliveries => icons::PLANE,
            Self::DeadLetters => icons::ENVELOPE,
            Self::Runtimes => icons::BOX,
            Self::Pools => icons::SWAP,
            Self::Tokens => icons::KEY,
            Self::History => icons::CLOCK,
            Self::System => icons::SLIDERS,
        })
    }

    pub fn label(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Jobs => "Jobs",
            Self::Queues => "Queues",
            Self::Pools => "Pools",
            Self::Workers => "Workers",
            Self::Runs => "Runs",
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
            Self::Runs => "/runs",
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
            Self::Runs => 'u',
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

/// A step of the breadcrumb below a page of the menu. The last one is the page itself.
#[derive(Clone, Debug)]
pub struct Crumb {
    pub label: String,
    /// The address relative to the root of the pages.
    pub link: Option<String>,
}

impl Crumb {
    /// The page itself.
    pub fn here(label: impl Into<String>) -> Self {
        Self { label: label.into(), link: None }
    }

    pub fn link(label: impl Into<String>, link: String) -> Self {
        Self { label: label.into(), link: Some(link) }
    }
}

/// A number beside an entry of the menu.
#[derive(Clone, Debug)]
pub(crate) struct Badge {
    pub(crate) count: usize,
    /// There are more than were counted.
    pub(crate) is_capped: bool,
    /// What is counted, for people who do not see the badge.
    pub(crate) meaning: &'static str,
}

#[derive(Clone, Debug)]
pub struct Frame {
    pub title: String,
    /// The relative path from this page to the root of the pages, so that a proxy can serve them under any path.
    pub root: String,
    pub current: Option<DashboardPage>,
    /// Empty for a page of the menu, else the steps from it to this page.
    pub trail: Vec<Crumb>,
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

    pub(crate) fn menu_link(&self, page: &DashboardPage) -> Markup {
        self.link(*page, page.link(), page.label())
    }

    /// The groups that have a page, with their pages.
    pub(crate) fn groups(&self) -> Vec<(PageGroup, Vec<DashboardPage>)> {
        let of = |group: PageGroup| (group, self.pages.iter().copied().filter(|page| page.group() == group).collect());
        PageGroup::ALL.into_iter().map(of).filter(|(_, pages): &(_, Vec<_>)| !pages.is_empty()).collect()
    }

    pub(crate) fn badge(&self, page: &DashboardPage) -> Option<Badge> {
        let (count, is_capped) = self.dead_letters.filter(|(count, _)| *count > 0)?;
        (*page == DashboardPage::DeadLetters).then_some(Badge { count, is_capped, meaning: "unresolved" })
    }

    /// The name of the group above the current page. A group with the name of its page is not repeated.
    pub(crate) fn group_label(&self) -> Option<&'static str> {
        let current = self.current?;
        Some(current.group().label()).filter(|label| !label.is_empty() && *label != current.label())
    }

    pub(crate) fn has_breadcrumb(&self) -> bool {
        self.group_label().is_some() || !self.trail.is_empty()
    }

    pub(crate) fn is_last(&self, index: &usize) -> bool {
        index + 1 == self.trail.len()
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
    fn the_menu_lists_its_pages_group_by_group() {
        let groups: Vec<PageGroup> = DashboardPage::ALL.iter().map(|page| page.group()).collect();
        let order = groups.iter().map(|group| PageGroup::ALL.iter().position(|of| of == group));
        assert!(order.is_sorted(), "{groups:?}");
    }

    #[test]
    fn each_page_has_a_unique_key() {
        let mut keys: Vec<char> = DashboardPage::ALL.iter().map(|page| page.key()).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), DashboardPage::ALL.len());
    }
}
