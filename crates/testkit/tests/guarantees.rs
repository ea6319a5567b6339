//! Checks docs/GUARANTEES.md: every test and every mutant that it names exists, and every mutant is named.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace is there")
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() && path.file_name().is_none_or(|name| name != "target") {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
    found
}

/// The names in backticks of a table cell.
fn names(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Rows of the page's tables: guarantee, tests, mutants.
fn rows(page: &str) -> Vec<[String; 3]> {
    let cells =
        |line: &str| line.trim().trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    page.lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| Guarantee"))
        .filter_map(|line| <[String; 3]>::try_from(cells(line)).ok())
        .collect()
}

/// `module::function`, for every test function, by the file and by inline modules.
fn test_paths() -> Vec<String> {
    let mut paths = Vec::new();
    for folder in ["crates", "examples"] {
        for file in files(&workspace().join(folder), "rs") {
            let text = std::fs::read_to_string(&file).expect("readable");
            let module = file.with_extension("").display().to_string().replace(['/', '-'], "::").replace("::mod", "");
            for function in text.split("fn ").skip(1) {
                let name: String =
                    function.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
                paths.push(format!("{module}::tests::{name}"));
                paths.push(format!("{module}::{name}"));
            }
        }
    }
    for file in files(&workspace().join("scripts"), "py") {
        let text = std::fs::read_to_string(&file).expect("readable");
        paths.extend(text.split("def ").skip(1).filter_map(|rest| rest.split('(').next()).map(str::to_owned));
    }
    paths
}

fn exists(name: &str, paths: &[String]) -> bool {
    if name.starts_with("scripts/") {
        return workspace().join(name.split(' ').next().unwrap_or(name)).exists();
    }
    match name.strip_suffix('*') {
        Some(start) => paths.iter().any(|path| path.contains(start)),
        None => paths.iter().any(|path| path == name || path.ends_with(&format!("::{name}"))),
    }
}

#[test]
fn every_test_that_the_page_names_exists() {
    let page = std::fs::read_to_string(workspace().join("docs/GUARANTEES.md")).expect("the page exists");
    let rows = rows(&page);
    assert!(rows.len() > 100, "only {} rows were read", rows.len());
    let paths = test_paths();
    let missing: Vec<&str> =
        rows.iter().flat_map(|[_, tests, _]| names(tests)).filter(|name| !exists(name, &paths)).collect();
    assert!(missing.is_empty(), "docs/GUARANTEES.md names tests that do not exist: {missing:#?}");
    let unproved: Vec<&String> =
        rows.iter().filter(|[_, tests, _]| names(tests).next().is_none()).map(|[row, ..]| row).collect();
    assert!(unproved.is_empty(), "guarantees without a test: {unproved:#?}");
}

#[test]
fn the_page_names_every_mutant_and_no_other() {
    let page = std::fs::read_to_string(workspace().join("docs/GUARANTEES.md")).expect("the page exists");
    let named: BTreeSet<String> =
        rows(&page).iter().flat_map(|[_, _, mutants]| names(mutants).map(str::to_owned).collect::<Vec<_>>()).collect();
    let file = std::fs::read_to_string(workspace().join("scripts/mutants.toml")).expect("the file exists");
    let mutants: BTreeSet<String> = file
        .lines()
        .filter_map(|line| line.strip_prefix("name = \""))
        .map(|rest| rest.trim_end_matches('"').to_owned())
        .collect();
    let unknown: Vec<_> = named.difference(&mutants).collect();
    let missing: Vec<_> = mutants.difference(&named).collect();
    assert!(
        unknown.is_empty() && missing.is_empty(),
        "unknown mutants: {unknown:?}; mutants without a row: {missing:?}"
    );
}
