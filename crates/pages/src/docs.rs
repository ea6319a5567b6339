//! The documentation at `/docs`: the repository's Markdown files, embedded in the binary, with navigation and search.
//!
//! Called by `server/dashboard/docs.rs`. All pages are rendered once, at the first request. Links are relative, so a
//! proxy may serve the pages under any path.

mod markdown;
mod search;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::LazyLock;

use askama::Template;

use crate::assets;
use crate::frame::root_of;
use crate::html::Markup;

pub use search::SearchHit;

include!(concat!(env!("OUT_DIR"), "/docs.rs"));

static SITE: LazyLock<Site> = LazyLock::new(Site::render);

/// The page with the navigation, as a file of the repository.
const INDEX: &str = "docs/index.md";

/// A page of the documentation, as HTML.
#[derive(Debug, Template)]
#[template(path = "docs.html")]
pub struct DocsPage {
    root: String,
    title: String,
    query: String,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Document { name: String, html: Markup },
    Results { hits: Vec<SearchHit>, has_more: bool },
}

struct Site {
    documents: Vec<Document>,
    by_name: HashMap<String, usize>,
    navigation: Vec<NavigationGroup>,
}

/// One rendered Markdown file.
struct Document {
    /// The address below `/docs/`; empty for the index.
    name: String,
    title: String,
    html: String,
    sections: Vec<Section>,
    links: Vec<Link>,
}

/// A heading and the text up to the next heading. Sections are the unit of search.
struct Section {
    anchor: String,
    title: String,
    text: String,
}

/// A link to another page of the documentation.
struct Link {
    /// The second-level heading above the link.
    group: String,
    label: String,
    name: String,
}

/// A second-level heading of the index with the pages that it links to.
#[derive(Debug)]
struct NavigationGroup {
    title: String,
    items: Vec<NavigationItem>,
}

#[derive(Debug)]
struct NavigationItem {
    label: String,
    name: String,
}

impl Site {
    fn render() -> Self {
        let mut documents: Vec<Document> = DOCUMENTS.iter().map(|(file, text)| markdown::render(file, text)).collect();
        let index = documents.iter().find(|document| document.name.is_empty()).expect("docs/index.md is embedded");
        let mut navigation: Vec<NavigationGroup> = Vec::new();
        for link in index.links.iter().filter(|link| !link.group.is_empty()) {
            if navigation.last().is_none_or(|group| group.title != link.group) {
                navigation.push(NavigationGroup { title: link.group.clone(), items: Vec::new() });
            }
            if let Some(group) = navigation.last_mut() {
                group.items.push(NavigationItem { label: link.label.clone(), name: link.name.clone() });
            }
        }
        // The order of search results of equal rank: as in the navigation, then all others.
        let position = |document: &Document| {
            let mut items = navigation.iter().flat_map(|group| &group.items);
            items.position(|item| item.name == document.name).unwrap_or(usize::MAX)
        };
        documents.sort_by_cached_key(position);
        let by_name = documents.iter().enumerate().map(|(index, document)| (document.name.clone(), index)).collect();
        Self { documents, by_name, navigation }
    }

    fn document(&self, name: &str) -> Option<&Document> {
        self.by_name.get(name).map(|index| &self.documents[*index])
    }
}

/// Returns the page at `/docs/{name}`, or the index if the name is empty. `None` if there is no such page.
pub fn page(name: &str) -> Option<DocsPage> {
    let document = SITE.document(name)?;
    let content = Content::Document { name: name.to_owned(), html: Markup::new(document.html.clone()) };
    Some(DocsPage { root: root_to(name), title: document.title.clone(), query: String::new(), content })
}

/// Returns the page of search results: sections that contain the query, at most `max`.
pub fn search(query: &str, max: usize) -> DocsPage {
    let (hits, has_more) = search::search(&SITE.documents, query, max);
    let content = Content::Results { hits, has_more };
    DocsPage { root: root_to("search"), title: "Search".into(), query: query.trim().to_owned(), content }
}

/// Returns the media type and the content of a picture at `/docs/{name}`.
pub fn picture(name: &str) -> Option<(&'static str, &'static [u8])> {
    let (file, bytes) = PICTURES.iter().find(|(file, _)| name_of(file) == name)?;
    Some((if file.ends_with(".svg") { "image/svg+xml" } else { "image/png" }, bytes))
}

/// The names of all pages.
pub fn names() -> impl Iterator<Item = &'static str> {
    SITE.documents.iter().map(|document| document.name.as_str())
}

/// The address below `/docs/` of a file of the repository.
fn name_of(file: &str) -> &str {
    if file == INDEX {
        return "";
    }
    let name = file.strip_prefix("docs/").unwrap_or(file);
    name.strip_suffix(".md").unwrap_or(name)
}

/// The relative path from a page of the documentation to the root of the pages.
fn root_to(name: &str) -> String {
    if name.is_empty() { root_of("/docs") } else { root_of(&format!("/docs/{name}")) }
}

/// The address of a page or picture, relative to the root of the pages.
fn address(name: &str) -> String {
    if name.is_empty() { "docs".into() } else { format!("docs/{name}") }
}

impl DocsPage {
    fn assets(&self) -> &str {
        &assets::VERSION
    }

    fn navigation(&self) -> &'static [NavigationGroup] {
        &SITE.navigation
    }

    fn is_current(&self, other: &str) -> bool {
        matches!(&self.content, Content::Document { name, .. } if name == other)
    }
}
