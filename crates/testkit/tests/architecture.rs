//! Asserts the architecture: the dependencies between crates, and which module may use a database driver.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Each crate, and the crates of the workspace that it may use.
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
    // Under examples/: code that a user could write.
    ("fleet", &["client"]),
    ("models", &["client"]),
];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace exists")
}

#[test]
fn crates_depend_on_each_other_only_as_documented() {
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
            // Dev-dependencies are not restricted.
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
    assert!(uses.is_empty(), "crates that are missing in MAY_USE: {uses:?}");
}

#[test]
fn the_domain_crate_has_no_runtime_serialization_randomness_or_database_dependency() {
    let manifest = std::fs::read_to_string(workspace().join("crates/domain/Cargo.toml")).expect("it exists");
    let dependencies = manifest.split("[dev-dependencies]").next().unwrap_or_default();
    for forbidden in ["tokio", "serde", "rusqlite", "getrandom", "rand", "jiff"] {
        assert!(!dependencies.contains(forbidden), "domain depends on {forbidden}");
    }
}

#[test]
fn only_the_transaction_module_names_a_driver() {
    let mut violations = Vec::new();
    for file in rust_files(&workspace().join("crates")) {
        let inside = file.components().any(|part| part.as_os_str() == "tx");
        let own_tests = ["tests", "testkit"].iter().any(|name| file.components().any(|p| p.as_os_str() == *name));
        let text = std::fs::read_to_string(&file).expect("readable");
        let names_a_driver = text.contains("rusqlite::") || text.contains("tokio_postgres::");
        if names_a_driver && !inside && !own_tests {
            violations.push(file);
        }
    }
    assert!(violations.is_empty(), "drivers are used outside store/src/db/tx: {violations:?}");
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

/// An operation with a tenant must report it, or PostgreSQL does not apply row-level security to it.
/// Requirement X6.
#[test]
fn each_operation_of_a_tenant_declares_its_tenant() {
    // These read other tenants' rows: the load of nodes, whether any secret exists, and tokens, which have no row-level
    // security.
    const OTHER_TENANTS: [&str; 6] = [
        "access/secrets/mod.rs: FindOrCreateTenantKey",
        "access/tokens/list.rs: ListTokens",
        "runtimes/begin.rs: BeginOperation",
        "runtimes/begin.rs: ReassignOperation",
        "runtimes/relocate.rs: FindMoveTarget",
        "runtimes/request.rs: FindTarget",
    ];
    let source = workspace().join("crates/store/src");
    let mut missing = Vec::new();
    for path in rust_files(&source) {
        let text = std::fs::read_to_string(&path).expect("readable");
        for part in text.split("impl Operation for ").skip(1) {
            let name = part.split(' ').next().unwrap_or_default();
            let fields = text.split(&format!("struct {name} {{")).nth(1).and_then(|rest| rest.split("\n}").next());
            let has_tenant = fields.is_some_and(|fields| fields.contains(" tenant: TenantId"));
            let body = part.split("\n}").next().unwrap_or_default();
            if has_tenant && !body.contains("fn tenant(&self)") {
                let file = path.strip_prefix(&source).expect("a file of the store").display();
                missing.push(format!("{file}: {name}"));
            }
        }
    }
    missing.sort();
    assert_eq!(missing, OTHER_TENANTS);
}

/// The groups of the store and the groups that each may use, beside `db` and `cache`.
const STORE_GROUPS: &[(&str, &[&str])] = &[
    ("queue", &["access", "fleet", "signals", "triggers"]),
    ("fleet", &["queue"]),
    ("signals", &["access", "queue", "runtimes", "triggers"]),
    ("triggers", &["access", "fleet", "queue", "runtimes"]),
    ("runtimes", &["access", "fleet", "queue", "triggers"]),
    ("access", &["fleet", "queue", "triggers"]),
];

#[test]
fn groups_of_the_store_use_only_the_groups_listed_for_them() {
    let source = workspace().join("crates/store/src");
    let mut found = Vec::new();
    for (group, allowed) in STORE_GROUPS {
        for file in rust_files(&source.join(group)) {
            let text = std::fs::read_to_string(&file).expect("readable");
            for path in text.split("crate::").skip(1) {
                let other =
                    path.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next().unwrap_or_default();
                let is_group = STORE_GROUPS.iter().any(|(name, _)| *name == other);
                if is_group && other != *group && !allowed.contains(&other) {
                    found.push(format!("{}: {group} uses {other}", file.display()));
                }
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// A reader who knows the folders of one crate knows those of all.
#[test]
fn every_layer_has_the_folders_of_the_groups() {
    let groups = ["queue", "fleet", "signals", "triggers", "runtimes", "access"];
    for layer in ["store/src", "domain/src", "wire/src", "pages/src", "server/src/http/v1", "app/src/cli"] {
        for group in groups {
            let folder = workspace().join("crates").join(layer).join(group);
            assert!(folder.is_dir(), "{layer} has no folder for the group {group}");
        }
    }
}
