//! The documentation at `/docs`: pages, links, images and search.

use std::collections::{BTreeMap, BTreeSet};

use axum::body::Body;
use serde_json::json;
use testkit::Database;

use crate::api::{Api, Response, request};

fn html(response: &Response) -> String {
    assert_eq!(response.header("content-type"), "text/html; charset=utf-8");
    String::from_utf8(response.body.to_vec()).unwrap()
}

/// Returns the links in a page, resolved against the page as a browser does.
fn links(page: &str, html: &str) -> BTreeSet<String> {
    let attributes = html.split("href=\"").skip(1).chain(html.split("src=\"").skip(1));
    let links = attributes.filter_map(|rest| rest.split('"').next());
    links.filter(|link| !link.starts_with("http")).map(|link| resolve(page, link)).collect()
}

fn resolve(page: &str, link: &str) -> String {
    if link.starts_with('#') {
        return format!("{page}{link}");
    }
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[tokio::test]
async fn every_page_of_the_documentation_answers_without_a_token_and_its_links_resolve() {
    let api = Api::new(Database::sqlite().await).await;
    api.token(json!({"name": "a", "role": "admin"})).await;
    let names: Vec<&str> = pages::docs::names().collect();
    assert!(names.len() > 80 && names.contains(&"") && names.contains(&"guides/triggers"), "{names:?}");
    let mut linked = BTreeMap::new();
    for name in names {
        let path = if name.is_empty() { "/docs".to_owned() } else { format!("/docs/{name}") };
        let response = api.get(&path).await;
        assert_eq!(response.status, 200, "{path}");
        assert!(response.header("content-security-policy").contains("default-src 'none'"), "{path}");
        let html = html(&response);
        linked.extend(links(&path, &html).into_iter().map(|link| (link, path.clone())));
    }
    for (link, page) in &linked {
        let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
        // The dashboard requires a token.
        let expected = if file == "/" { 401 } else { 200 };
        let response = api.get(file).await;
        assert_eq!(response.status, expected, "{link} in {page}");
        let has_anchor = || html(&response).contains(&format!("id=\"{anchor}\""));
        assert!(anchor.is_empty() || has_anchor(), "{page}: {file} has no #{anchor}");
    }
    let linked: BTreeSet<&str> = linked.keys().map(String::as_str).collect();
    assert!(linked.contains("/docs/images/dashboard.png") && linked.contains("/docs/adr/README"), "{linked:?}");
    let picture = api.get("/docs/images/dashboard.png").await;
    assert_eq!(picture.header("content-type"), "image/png");
    assert!(picture.body.starts_with(b"\x89PNG"));
}

#[tokio::test]
async fn a_search_of_the_documentation_finds_titles_and_text_and_is_bounded() {
    let api = Api::new(Database::sqlite().await).await;
    let found = html(&api.get("/docs/search?q=STARVATION_s").await);
    assert!(found.contains("<mark>starvation_s</mark>") && found.contains("href=\"../docs/"), "{found}");
    let many = html(&api.get("/docs/search?q=the").await);
    assert_eq!(many.matches("<mark>").count(), 20);
    assert!(many.contains("20 first results"));
    assert!(html(&api.get("/docs/search?q=zzqqzz").await).contains("No results"));
    assert!(html(&api.get("/docs/search").await).contains("No results"));
    let hostile = html(&api.get("/docs/search?q=%22%3E%3Cscript%3E").await);
    assert!(!hostile.contains("<script>"), "{hostile}");
    assert_eq!(api.get(&format!("/docs/search?q={}", "a".repeat(200))).await.status, 200);
    api.get(&format!("/docs/search?q={}", "a".repeat(201))).await.problem(400, "invalid_query", Some("q"));
    api.get("/docs/search?x=1").await.problem(400, "invalid_query", Some("x"));
}

#[tokio::test]
async fn every_error_code_has_a_section_in_the_documentation() {
    let source = include_str!("../../../wire/src/problem.rs").lines();
    let codes = source.filter_map(|line| line.trim().strip_prefix("pub const ")?.split('"').nth(1));
    let api = Api::new(Database::sqlite().await).await;
    api.token(json!({"name": "a", "role": "admin"})).await;
    let mut addresses = BTreeSet::new();
    for code in codes {
        let address = wire::Problem::kind_of(code);
        let (page, anchor) = address.split_once('#').unwrap();
        let html = html(&api.get(page).await);
        assert!(html.contains(&format!("<h3 id=\"{anchor}\">")), "{page} has no section {anchor}");
        assert!(addresses.insert(address), "two codes are {code}");
    }
    assert!(addresses.len() > 50, "{addresses:?}");
}

#[tokio::test]
async fn a_problem_and_its_page_link_to_the_section_of_the_error() {
    let api = Api::new(Database::sqlite().await).await;
    for (path, status, code) in [("/none", 404, "no_such_route"), ("/jobs?x=1", 400, "invalid_query")] {
        let problem = api.get(path).await.json();
        assert_eq!(problem["type"], format!("/docs/reference/error-codes#{code}"));
        let page_request = request("GET", path).header("accept", "text/html").body(Body::empty()).unwrap();
        let page = api.send(page_request).await;
        assert_eq!(page.status, status);
        let links = links(path, &html(&page));
        assert!(links.contains(problem["type"].as_str().unwrap()), "{links:?}");
    }
}

#[tokio::test]
async fn an_unknown_page_of_the_documentation_is_not_found() {
    let api = Api::new(Database::sqlite().await).await;
    for path in [
        "/docs/none",
        "/docs/guides",
        "/docs/guides%2Ftriggers",
        "/docs/../Cargo.toml",
        "/docs/guides/triggers.md",
        "/docs/guides/triggers/",
    ] {
        api.get(path).await.problem(404, "not_found", None);
    }
    let page_request = request("GET", "/docs/none").header("accept", "text/html").body(Body::empty()).unwrap();
    let response = api.send(page_request).await;
    assert_eq!(response.status, 404);
    assert!(html(&response).contains("there is no such page"));
}

#[tokio::test]
async fn the_dashboard_links_to_the_documentation_and_markup_in_it_is_escaped() {
    let api = Api::new(Database::sqlite().await).await;
    assert!(html(&api.get("/jobs").await).contains("href=\"./docs\">Docs</a>"));
    // This page documents the markup of generated sections, so its text contains that markup.
    let page = html(&api.get("/docs/reference/cli").await);
    assert!(!page.contains("generated below") && !page.contains("style="), "comments are not shown");
    for name in pages::docs::names() {
        let response = api.get(&if name.is_empty() { "/docs".to_owned() } else { format!("/docs/{name}") }).await;
        let html = html(&response);
        assert_eq!(html.matches("<script").count(), 1, "{name} has only the theme's script");
        assert_eq!(html.matches("<main").count(), 1, "{name}");
    }
}
