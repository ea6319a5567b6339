use std::collections::BTreeSet;

use super::*;

fn rendered(text: &str) -> Document {
    markdown::render("docs/guides/triggers.md", text)
}

#[test]
fn markup_in_a_document_is_escaped() {
    let html = rendered("# A\n\n<script>alert(1)</script> and <b onclick=x>\n\n<div>\n\n<!-- hidden -->\n").html;
    assert!(
        html.contains("&lt;script&gt;") && html.contains("&lt;b onclick") && html.contains("&lt;div&gt;"),
        "{html}"
    );
    assert!(!html.contains("<script") && !html.contains("<b ") && !html.contains("hidden"), "{html}");
}

#[test]
fn an_address_that_is_neither_http_nor_a_document_is_shown_as_text() {
    let html = rendered("[a](javascript:alert(1)) [b](../nowhere.md) [c](data:text/html,x) [d](//evil.example)").html;
    assert_eq!(html, "<p>a b c d</p>\n");
}

#[test]
fn links_between_files_lead_to_pages() {
    let html =
        rendered("[p](pools.md#health) [r](../../README.md) [i](../index.md) [h](#here) [w](https://a.b/c)").html;
    for expected in ["../../docs/guides/pools#health", "../../docs/README", "../../docs", "#here", "https://a.b/c"] {
        assert!(html.contains(&format!("{expected}\"")), "{expected} in {html}");
    }
}

#[test]
fn headings_have_the_anchors_that_github_gives_them() {
    let document = rendered("# `a` b\n\n## Two words, more\n\n## Two words, more\n");
    let anchors: Vec<&str> = document.sections.iter().map(|section| section.anchor.as_str()).collect();
    assert_eq!(anchors, ["a-b", "two-words-more", "two-words-more-1"]);
    assert_eq!(document.title, "a b");
}

#[test]
fn nothing_in_a_page_needs_an_inline_style_or_script() {
    let html = rendered("| a | b |\n|---:|:--|\n| 1 | 2 |\n\n```mermaid\nflowchart LR\n```\n").html;
    assert!(html.contains("<table>") && html.contains("flowchart LR"), "{html}");
    for document in &SITE.documents {
        for banned in ["style=", "<script", "<iframe", "onclick="] {
            let html = document.html.replace("&lt;", "").replace("&quot;", "");
            assert!(
                !html.contains(&format!(" {banned}")) && !html.contains(&format!("<{banned}")),
                "{}",
                document.name
            );
        }
    }
}

#[test]
fn every_page_can_be_reached_from_the_index() {
    let mut reached = BTreeSet::from([""]);
    let mut pending = vec![""];
    while let Some(name) = pending.pop() {
        let links = SITE.document(name).map(|document| document.links.as_slice()).unwrap_or_default();
        pending.extend(links.iter().map(|link| link.name.as_str()).filter(|name| reached.insert(name)));
    }
    assert_eq!(reached, names().collect());
    assert_eq!(SITE.by_name.len(), SITE.documents.len(), "names are unique");
    let groups: Vec<&str> = SITE.navigation.iter().map(|group| group.title.as_str()).collect();
    assert_eq!(groups, ["Tutorials", "Guides", "Reference", "Internals"]);
}

#[test]
fn search_ignores_case_ranks_titles_first_and_is_bounded() {
    let documents = [
        rendered("# Other\n\nIt uses a Fencing Token — called epoch.\n"),
        rendered("# Guide\n\n## Fencing token\n\nText.\n"),
    ];
    let (hits, has_more) = search::search(&documents, " fencing TOKEN ", 10);
    assert_eq!(hits.iter().map(|hit| hit.section.as_str()).collect::<Vec<_>>(), ["Fencing token", ""]);
    assert_eq!((hits[1].matched.as_str(), has_more), ("Fencing Token", false));
    assert_eq!(hits[1].after, " — called epoch. ");
    assert!(hits[0].address.ends_with("#fencing-token"), "{:?}", hits[0]);
    let (hits, has_more) = search::search(&documents, "fencing", 1);
    assert_eq!((hits.len(), has_more), (1, true));
    assert!(search::search(&documents, "  ", 10).0.is_empty());
    assert!(search::search(&documents, "zzz", 10).0.is_empty());
}

#[test]
fn an_excerpt_begins_and_ends_at_letters() {
    for padding in 0..200 {
        let text = format!("# T\n\n{}needle{}\n", "é".repeat(padding), "—".repeat(padding));
        let (hits, _) = search::search(&[rendered(&text)], "needle", 1);
        assert_eq!(hits[0].matched, "needle");
    }
}
