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
        // The SDK enqueues jobs in transactions of its users.
        let inside = file.components().any(|part| part.as_os_str() == "tx")
            || file.ends_with("crates/client/src/queue/transactional.rs");
        let own_tests =
            ["tests", "testkit", "examples"].iter().any(|name| file.components().any(|p| p.as_os_str() == *name));
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

/// The groups that divide every crate.
const GROUPS: [&str; 7] = ["queue", "workflows", "fleet", "signals", "triggers", "runtimes", "access"];

/// The groups of a crate, and the other groups of the same crate that each may use.
type GroupRules = (&'static str, &'static [(&'static str, &'static [&'static str])]);

/// Beside the groups, each may use the base of its crate, for example `db` and `cache` of the store.
const GROUPS_MAY_USE: &[GroupRules] = &[
    (
        "domain",
        &[
            ("access", &["triggers"]),
            ("fleet", &["queue"]),
            ("queue", &["fleet", "triggers"]),
            ("runtimes", &[]),
            ("signals", &["queue"]),
            ("triggers", &[]),
            ("workflows", &["signals"]),
        ],
    ),
    (
        "store",
        &[
            ("access", &["fleet", "queue", "triggers"]),
            ("fleet", &["queue"]),
            ("queue", &["access", "fleet", "signals", "triggers", "workflows"]),
            ("runtimes", &["access", "fleet", "queue", "triggers"]),
            ("signals", &["access", "fleet", "queue", "runtimes", "triggers", "workflows"]),
            ("triggers", &["access", "fleet", "queue", "runtimes"]),
            ("workflows", &["access", "queue", "triggers"]),
        ],
    ),
    (
        "engine",
        &[
            ("access", &[]),
            ("fleet", &[]),
            ("queue", &[]),
            ("runtimes", &["queue"]),
            ("signals", &[]),
            ("triggers", &["queue"]),
            ("workflows", &["queue"]),
        ],
    ),
    (
        "wire",
        &[
            ("access", &[]),
            ("fleet", &["queue"]),
            ("queue", &["workflows"]),
            ("runtimes", &[]),
            ("signals", &[]),
            ("triggers", &["queue"]),
            ("workflows", &["queue", "signals"]),
        ],
    ),
    (
        "server",
        &[
            ("access", &["fleet"]),
            ("fleet", &["access"]),
            ("queue", &["access", "fleet", "signals", "triggers", "workflows"]),
            ("runtimes", &["access", "queue", "triggers"]),
            ("signals", &["access", "triggers"]),
            ("triggers", &["access", "queue"]),
            ("workflows", &["access", "queue", "signals", "triggers"]),
        ],
    ),
];

/// The base of the store must not use a group. Exceptions, each with its reason.
const BASE_MAY_USE: &[(&str, &str, &str)] = &[
    ("db/clock_step.rs", "triggers", "schedules move with the clock"),
    ("db/effects.rs", "workflows", "a commit reports the ended jobs of runs"),
    ("db/group_commit.rs", "queue", "the requests of enqueue and settle share commits"),
    ("db/group_commit.rs", "workflows", "the requests of journals share commits"),
];

/// The group of a file: its first folder that is named after a group, or its own name.
fn group_of(file: &Path) -> Option<&'static str> {
    let stem = file.file_stem();
    let folders = file.parent().into_iter().flat_map(Path::components).map(|part| part.as_os_str());
    let mut names = folders.chain(stem);
    names.find_map(|name| GROUPS.into_iter().find(|group| name == *group))
}

/// The groups that the code names in paths such as `crate::queue::…` and `crate::validate::queue::…`.
fn used_groups(text: &str) -> BTreeSet<&'static str> {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let mut used = BTreeSet::new();
    for path in code.split("crate::").skip(1) {
        let end = path.find(|letter: char| !is_word(letter) && letter != ':').unwrap_or(path.len());
        let segments = path[..end].split("::").take(3);
        used.extend(segments.filter_map(|name| GROUPS.into_iter().find(|group| name == *group)).take(1));
    }
    used
}

#[test]
fn groups_use_only_the_groups_listed_for_them() {
    let mut found = Vec::new();
    for (krate, rules) in GROUPS_MAY_USE {
        let source = workspace().join("crates").join(krate).join("src");
        for path in rust_files(&source) {
            let file = path.strip_prefix(&source).expect("a file of the crate");
            let Some(group) = group_of(file) else { continue };
            let (_, allowed) = rules.iter().find(|(name, _)| *name == group).expect("every group has a rule");
            let used = used_groups(&std::fs::read_to_string(&path).expect("readable"));
            let forbidden = used.into_iter().filter(|other| *other != group && !allowed.contains(other));
            found.extend(forbidden.map(|other| format!("{krate}/src/{}: {group} uses {other}", file.display())));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_base_of_the_store_uses_no_group() {
    let source = workspace().join("crates/store/src");
    let mut found = BTreeSet::new();
    for folder in ["db", "cache"] {
        for path in rust_files(&source.join(folder)) {
            let file = path.strip_prefix(&source).expect("a file of the store").display().to_string();
            let used = used_groups(&std::fs::read_to_string(&path).expect("readable"));
            found.extend(used.into_iter().map(|group| (file.clone(), group.to_owned())));
        }
    }
    let allowed = BASE_MAY_USE.iter().map(|(file, group, _)| ((*file).to_owned(), (*group).to_owned())).collect();
    assert_eq!(found, allowed);
}

/// A reader who knows the folders of one crate knows those of all.
#[test]
fn every_layer_has_the_folders_of_the_groups() {
    let layers = [
        "store/src",
        "domain/src",
        "engine/src",
        "wire/src",
        "pages/src",
        "server/src/http/v1",
        "client/src",
        "app/src/cli",
    ];
    for layer in layers {
        // Access needs no background task. Workflows are not complete in every layer yet.
        let is_required = |group: &&&str| **group != "workflows" && (layer, **group) != ("engine/src", "access");
        for group in GROUPS.iter().filter(is_required) {
            let folder = workspace().join("crates").join(layer).join(group);
            assert!(folder.is_dir(), "{layer} has no folder for the group {group}");
        }
    }
}

/// The names in backticks of ARCHITECTURE.md and of the decision records: types, `Type::Variant`, and files.
#[test]
fn documents_name_only_types_and_files_that_exist() {
    let root = workspace();
    let mut files = rust_files(&root.join("crates"));
    files.extend(rust_files(&root.join("examples")));
    let mut words = BTreeSet::new();
    for file in &files {
        let text = std::fs::read_to_string(file).expect("readable");
        words.extend(text.split(|letter: char| !letter.is_alphanumeric() && letter != '_').map(str::to_owned));
    }
    let records =
        std::fs::read_dir(root.join("docs/adr")).expect("a folder").map(|entry| entry.expect("an entry").path());
    let mut missing = Vec::new();
    for document in records.chain([root.join("ARCHITECTURE.md")]) {
        let text = std::fs::read_to_string(&document).expect("readable");
        // Code blocks are diagrams and commands.
        let prose = text.split("```").step_by(2).collect::<Vec<_>>().join(" ");
        for code in prose.split('`').skip(1).step_by(2) {
            let is_type = |word: &&str| {
                word.starts_with(char::is_uppercase) && word.chars().skip(1).any(char::is_lowercase) && {
                    word.chars().skip(1).any(char::is_uppercase)
                }
            };
            let names = code.split(|letter: char| !letter.is_alphanumeric() && letter != '_').filter(is_type);
            missing.extend(names.filter(|name| !words.contains(*name)).map(|name| (document.clone(), name.to_owned())));
            let paths = code.split(' ').filter(|path| path.ends_with(".rs") && !path.contains(['<', '*', '{']));
            let exists = |path: &str| files.iter().any(|file| file.ends_with(path));
            missing.extend(paths.filter(|path| !exists(path)).map(|path| (document.clone(), path.to_owned())));
        }
    }
    let list: Vec<String> = missing.iter().map(|(file, name)| format!("{}: {name}", file.display())).collect();
    assert!(list.is_empty(), "{}", list.join("\n"));
}
