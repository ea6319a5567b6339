//! The shape of the tree, asserted: who may depend on whom, and who may name a database driver.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Each crate and the crates of this workspace it may use.
const MAY_USE: &[(&str, &[&str])] = &[
    ("wire", &[]),
    ("domain", &[]),
    ("store", &["domain"]),
    ("script", &["domain"]),
    ("engine", &["domain", "script", "store"]),
    ("pages", &["wire"]),
    ("server", &["domain", "engine", "pages", "store", "wire"]),
    ("client", &["wire"]),
    ("embedded", &["client", "domain", "engine", "store", "wire"]),
    ("app", &["client", "domain", "embedded", "engine", "server", "store", "wire"]),
    ("testkit", &["domain", "store"]),
    // Under examples/: what a user may write.
    ("fleet", &["client"]),
    ("models", &["client"]),
];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace is there")
}

#[test]
fn crates_depend_on_each_other_only_as_drawn() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(workspace())
        .output()
        .expect("cargo runs");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON");
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in metadata["packages"].as_array().expect("packages") {
        let manifest = Path::new(package["manifest_path"].as_str().expect("a path"));
        let folder = manifest.parent().and_then(Path::file_name).expect("a folder").to_string_lossy().into_owned();
        let of_workspace = package["dependencies"].as_array().expect("dependencies").iter().filter(|dependency| {
            // What tests use beside is their own affair.
            dependency["kind"].is_null() && dependency["path"].is_string()
        });
        let names = of_workspace.map(|dependency| {
            let path = Path::new(dependency["path"].as_str().expect("a path"));
            path.file_name().expect("a folder").to_string_lossy().into_owned()
        });
        uses.insert(folder, names.collect());
    }
    for (krate, allowed) in MAY_USE {
        let allowed: BTreeSet<String> = allowed.iter().map(|name| name.to_string()).collect();
        let used = uses.remove(*krate).unwrap_or_else(|| panic!("{krate} is missing"));
        let forbidden: Vec<_> = used.difference(&allowed).collect();
        assert!(forbidden.is_empty(), "{krate} must not use {forbidden:?}");
    }
    assert!(uses.is_empty(), "crates without a place in the drawing: {uses:?}");
}

#[test]
fn the_rules_know_no_clock_no_dice_no_json_and_no_database() {
    let manifest = std::fs::read_to_string(workspace().join("crates/domain/Cargo.toml")).expect("it is there");
    let dependencies = manifest.split("[dev-dependencies]").next().unwrap_or_default();
    for forbidden in ["tokio", "serde", "rusqlite", "getrandom", "rand", "jiff"] {
        assert!(!dependencies.contains(forbidden), "domain depends on {forbidden}");
    }
}

#[test]
fn only_the_transaction_module_names_a_driver() {
    let mut guilty = Vec::new();
    for file in rust_files(&workspace().join("crates")) {
        let inside = file.components().any(|part| part.as_os_str() == "tx");
        let own_tests = ["tests", "testkit"].iter().any(|name| file.components().any(|p| p.as_os_str() == *name));
        let text = std::fs::read_to_string(&file).expect("readable");
        let names_a_driver = text.contains("rusqlite::") || text.contains("tokio_postgres::");
        if names_a_driver && !inside && !own_tests {
            guilty.push(file);
        }
    }
    assert!(guilty.is_empty(), "drivers are named outside store/src/tx: {guilty:?}");
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// An operation that knows its tenant says so, or PostgreSQL builds no wall around it.
#[test]
fn x6_operations_of_one_tenant_say_whose_they_are() {
    // These look beyond their tenant: how busy nodes are, whether any secret was ever sealed, and tokens, which have no wall.
    const BEYOND: [&str; 6] = [
        "runtimes/begin.rs: Begin",
        "runtimes/begin.rs: HandOver",
        "runtimes/relocate.rs: LookAround",
        "runtimes/request.rs: Look",
        "secrets/mod.rs: FindOrMake",
        "tokens/list.rs: List",
    ];
    let source = workspace().join("crates/store/src");
    let mut silent = Vec::new();
    for path in rust_files(&source) {
        let text = std::fs::read_to_string(&path).expect("it can be read");
        for part in text.split("impl Operation for ").skip(1) {
            let name = part.split(' ').next().unwrap_or_default();
            let fields = text.split(&format!("struct {name} {{")).nth(1).and_then(|rest| rest.split("\n}").next());
            let knows = fields.is_some_and(|fields| fields.contains(" tenant: TenantId"));
            let body = part.split("\n}").next().unwrap_or_default();
            if knows && !body.contains("fn tenant(&self)") {
                let place = path.strip_prefix(&source).expect("it is there").display();
                silent.push(format!("{place}: {name}"));
            }
        }
    }
    silent.sort();
    assert_eq!(silent, BEYOND);
}
