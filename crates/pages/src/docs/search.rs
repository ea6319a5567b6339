//! Search over the sections of all documents: a case-insensitive substring of titles and text.

use super::{Document, Section, address};

/// Text shown on each side of a match, in bytes.
const EXCERPT_BYTES: usize = 90;

/// A section that contains the query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchHit {
    /// Relative to the root of the pages.
    pub(super) address: String,
    pub(super) document: String,
    /// The heading; empty for the beginning of a document.
    pub(super) section: String,
    pub(super) before: String,
    pub(super) matched: String,
    pub(super) after: String,
}

/// Where a section contains the query, best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    DocumentTitle,
    SectionTitle,
    Text,
}

/// Returns at most `max` matches, and true if there are more. An empty query matches nothing.
pub(super) fn search(documents: &[Document], query: &str, max: usize) -> (Vec<SearchHit>, bool) {
    // Lowercase ASCII has the same length, so that positions in it are positions in the text.
    let query = query.trim().to_ascii_lowercase();
    if query.is_empty() {
        return (Vec::new(), false);
    }
    let mut found: Vec<(Rank, &Document, &Section)> = Vec::new();
    for document in documents {
        for (index, section) in document.sections.iter().enumerate() {
            if let Some(rank) = rank(document, section, index == 0, &query) {
                found.push((rank, document, section));
            }
        }
    }
    found.sort_by_key(|(rank, ..)| *rank);
    let has_more = found.len() > max;
    (found.into_iter().take(max).map(|(_, document, section)| hit(document, section, &query)).collect(), has_more)
}

fn rank(document: &Document, section: &Section, is_first: bool, query: &str) -> Option<Rank> {
    let contains = |text: &str| text.to_ascii_lowercase().contains(query);
    if is_first && contains(&document.title) {
        Some(Rank::DocumentTitle)
    } else if contains(&section.title) {
        Some(Rank::SectionTitle)
    } else {
        contains(&section.text).then_some(Rank::Text)
    }
}

fn hit(document: &Document, section: &Section, query: &str) -> SearchHit {
    let text = &section.text;
    // A match in the title alone shows the beginning of the section.
    let found = text.to_ascii_lowercase().find(query);
    let (start, end) = found.map_or((0, 0), |start| (start, start + query.len()));
    let from = (start.saturating_sub(EXCERPT_BYTES)..=start).find(|at| text.is_char_boundary(*at)).unwrap_or(start);
    let until = (end..=text.len().min(end + EXCERPT_BYTES)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(end);
    let hash = if section.anchor.is_empty() { "" } else { "#" };
    SearchHit {
        address: format!("{}{hash}{}", address(&document.name), section.anchor),
        document: document.title.clone(),
        section: if section.title == document.title { String::new() } else { section.title.clone() },
        before: format!("{}{}", if from > 0 { "…" } else { "" }, one_line(&text[from..start])),
        matched: one_line(&text[start..end]),
        after: format!("{}{}", one_line(&text[end..until]), if until < text.len() { "…" } else { "" }),
    }
}

/// Replaces every run of white space by one space.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter.is_whitespace() {
            true if line.ends_with(' ') => {}
            true => line.push(' '),
            false => line.push(letter),
        }
    }
    line
}
