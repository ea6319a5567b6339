//! The vocabulary, checked: banned words in identifiers, SQL and names of files, two types with one name, requirement
//! codes in comments, and waits in tests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Words that are private jargon. An identifier, a string literal or the name of a file must not contain one of them as
/// a part.
const BANNED: [&str; 26] = [
    "told", "heard", "unheard", "whoever", "whose", "nobody", "somebody", "befell", "anew", "wall", "walled", "floors",
    "habit", "habits", "lesson", "lessons", "usual", "unusual", "hindered", "abreast", "deed", "deeds", "patience",
    "dice", "spots", "befallen",
];

/// Type names that several modules of a crate may share, each with its reason.
const SHARED_TYPES: [(&str, &str); 5] = [
    ("Error", "each layer has its own error type"),
    ("Filter", "each listing has its own filter"),
    ("State", "private to the module of one mechanism"),
    ("Output", "an associated type"),
    ("IntoFuture", "an associated type"),
];

fn crates() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("the folder of crates")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.join("Cargo.toml").exists())
        .collect();
    found.sort();
    found
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let Ok(entries) = std::fs::read_dir(folder) else { return files };
    for entry in entries {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// A file in parts. Comments and string literals carry their line.
struct Source {
    /// The text with comments and string literals replaced by spaces.
    code: String,
    comments: Vec<(usize, String)>,
    literals: Vec<(usize, String)>,
}

fn split(text: &str) -> Source {
    let (mut code, mut comments, mut literals) = (String::with_capacity(text.len()), Vec::new(), Vec::new());
    let mut line = 1;
    let bytes: Vec<char> = text.chars().collect();
    let mut at = 0;
    let starts = |at: usize, what: &str| what.chars().enumerate().all(|(i, c)| bytes.get(at + i) == Some(&c));
    while at < bytes.len() {
        let from = at;
        if starts(at, "//") {
            while at < bytes.len() && bytes[at] != '\n' {
                at += 1;
            }
            comments.push((line, bytes[from..at].iter().collect()));
            code.push(' ');
        } else if bytes[at] == 'r' && (starts(at, "r\"") || starts(at, "r#\"")) && !code.ends_with(is_word) {
            let end = if starts(at, "r#\"") { "\"#" } else { "\"" };
            at += if end.len() == 2 { 3 } else { 2 };
            while at < bytes.len() && !starts(at, end) {
                at += 1;
            }
            at += end.len();
            literals.push((line, bytes[from..at.min(bytes.len())].iter().collect()));
            code.push(' ');
        } else if bytes[at] == '"' {
            at += 1;
            while at < bytes.len() && bytes[at] != '"' {
                at += if bytes[at] == '\\' { 2 } else { 1 };
            }
            at += 1;
            literals.push((line, bytes[from..at.min(bytes.len())].iter().collect()));
            code.push(' ');
        } else if bytes[at] == '\'' && (bytes.get(at + 2) == Some(&'\'') || bytes.get(at + 1) == Some(&'\\')) {
            at += if bytes[at + 1] == '\\' { 2 } else { 1 };
            while at < bytes.len() && bytes[at] != '\'' {
                at += 1;
            }
            at += 1;
            code.push(' ');
        } else {
            code.push(bytes[at]);
            at += 1;
        }
        line += bytes[from..at.min(bytes.len())].iter().filter(|c| **c == '\n').count();
    }
    Source { code, comments, literals }
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// `FooBar_baz` has the parts foo, bar and baz.
fn parts(identifier: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut was_lower = false;
    for letter in identifier.chars() {
        if letter == '_' || (letter.is_uppercase() && was_lower) {
            parts.push(String::new());
        }
        if letter != '_' {
            parts.last_mut().expect("never empty").extend(letter.to_lowercase());
        }
        was_lower = letter.is_lowercase() || letter.is_numeric();
    }
    parts
}

#[test]
fn no_identifier_literal_or_file_name_contains_a_banned_word() {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for folder in crates() {
        for file in rust_files(&folder) {
            let Source { code, literals, .. } = split(&std::fs::read_to_string(&file).expect("readable"));
            let name = file.strip_prefix(&folder).unwrap_or(&file).display().to_string();
            // The list of words is in this file.
            let is_this_file = file.ends_with(file!().rsplit('/').next().unwrap_or_default());
            let literals = literals.iter().map(|(_, literal)| literal).filter(|_| !is_this_file);
            let texts = [&code, &name].into_iter().chain(literals);
            for identifier in texts.flat_map(|text| text.split(|letter: char| !is_word(letter))) {
                if parts(identifier).iter().any(|part| BANNED.contains(&part.as_str())) {
                    found.entry(identifier.to_owned()).or_default().insert(file.display().to_string());
                }
            }
        }
    }
    let list: Vec<String> = found.iter().map(|(word, files)| format!("{word}: {files:?}")).collect();
    assert!(list.is_empty(), "{} identifiers use private jargon:\n{}", list.len(), list.join("\n"));
}

#[test]
fn no_two_types_of_a_crate_share_a_name() {
    let mut found = Vec::new();
    for folder in crates() {
        let mut types: BTreeMap<String, BTreeSet<PathBuf>> = BTreeMap::new();
        for file in rust_files(&folder.join("src")) {
            if file.file_name().is_some_and(|name| name == "tests.rs")
                || file.components().any(|c| c.as_os_str() == "tests")
            {
                continue;
            }
            let code = split(&std::fs::read_to_string(&file).expect("readable")).code;
            let code = code.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
            for whole_line in code.lines() {
                let line = whole_line.trim_start();
                let line = line.strip_prefix("pub ").unwrap_or(line);
                let line = match line.strip_prefix("pub(") {
                    Some(rest) => rest.split_once(") ").map_or("", |(_, rest)| rest),
                    None => line,
                };
                let Some((keyword, rest)) = line.split_once(' ') else { continue };
                // An indented `type` is an associated type.
                let is_alias = keyword == "type" && !whole_line.starts_with(' ');
                if is_alias || ["struct", "enum", "trait"].contains(&keyword) {
                    let name: String = rest.chars().take_while(|letter| is_word(*letter)).collect();
                    types.entry(name).or_default().insert(file.clone());
                }
            }
        }
        let shared = |name: &str| SHARED_TYPES.iter().any(|(shared, _)| *shared == name);
        found.extend(types.into_iter().filter(|(name, files)| files.len() > 1 && !shared(name)).map(
            |(name, files)| {
                let files: Vec<_> =
                    files.iter().map(|file| file.strip_prefix(&folder).unwrap_or(file).display()).collect();
                format!("{} {name}: {files:?}", folder.file_name().unwrap_or_default().display())
            },
        ));
    }
    assert!(found.is_empty(), "{} names belong to several types:\n{}", found.len(), found.join("\n"));
}

/// Requirement codes such as `Q12` mean nothing to a reader of the code. Tests carry them as `/// Requirement Q12.`
#[test]
fn no_comment_refers_to_a_requirement_code() {
    let mut found = Vec::new();
    for folder in crates() {
        for file in rust_files(&folder.join("src")) {
            let comments = split(&std::fs::read_to_string(&file).expect("readable")).comments;
            for (line, comment) in comments {
                let words = comment.split(|letter: char| !is_word(letter));
                let is_code = |word: &str| {
                    let (letter, digits) = word.split_at(word.len().min(1));
                    "QWSTRXFB".contains(letter)
                        && !letter.is_empty()
                        && !digits.is_empty()
                        && digits.len() <= 2
                        && digits.chars().all(|digit| digit.is_ascii_digit())
                };
                let is_of_a_test = comment.trim_start_matches('/').trim_start().starts_with("Requirement ");
                if words.into_iter().any(is_code) && !is_of_a_test && !comment.contains("S3") {
                    found.push(format!("{}:{line}: {comment}", file.display()));
                }
            }
        }
    }
    assert!(found.is_empty(), "{} comments refer to requirement codes:\n{}", found.len(), found.join("\n"));
}

/// Files of tests that sleep, each with its reason. Other tests wait with `testkit::eventually`.
const SLEEPS: &[(&str, &str)] = &[
    ("app/tests/journeys/lease.rs", "the server must be down for a given time"),
    ("app/tests/journeys/support/load.rs", "the duration of a handler"),
    ("app/tests/journeys/support/postgres.rs", "`drop` cannot await"),
    ("app/tests/journeys/support/wire.rs", "an injected delay"),
    ("app/tests/journeys/torture/kills.rs", "the duration of a freeze"),
    ("app/tests/journeys/torture/load.rs", "the interval of faults and of samples"),
    ("app/tests/journeys/torture/network.rs", "the duration of a stall"),
    ("app/tests/journeys/torture/storm.rs", "the duration of a handler, and backpressure without a deadline"),
    ("app/tests/journeys/triggers.rs", "the rate of a publisher"),
    ("client/src/queue/worker/tests.rs", "on the paused clock of tokio"),
    ("client/src/queue/worker/tests/fake.rs", "on the paused clock of tokio"),
    ("client/src/queue/worker/tests/overdue.rs", "on the paused clock of tokio"),
    ("client/src/queue/worker/tests/refusals.rs", "on the paused clock of tokio"),
    ("server/tests/http/queue/jobs.rs", "a long poll that waits cannot be observed"),
    ("server/tests/http/queue/workers.rs", "a claim and a heartbeat that wait cannot be observed"),
    ("server/tests/http/runtimes/operations.rs", "nothing may happen during that time"),
    ("server/tests/http/runtimes/pools.rs", "nothing may happen during that time"),
    ("testkit/src/eventually.rs", "the one place that polls"),
    ("testkit/src/receiver.rs", "an injected delay"),
];

#[test]
fn no_test_sleeps_except_for_a_listed_reason() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut sleeping = BTreeSet::new();
    for path in crates().iter().flat_map(|folder| rust_files(folder)) {
        let code = split(&std::fs::read_to_string(&path).expect("readable")).code;
        let file = path.strip_prefix(&root).expect("a file of a crate");
        let is_of_tests = file.file_name().is_some_and(|name| name == "tests.rs")
            || file.components().any(|part| part.as_os_str() == "tests" || part.as_os_str() == "testkit");
        let unit_tests = code.split_once("#[cfg(test)]\nmod tests {").map_or("", |(_, tests)| tests);
        // A builder of tests for the operation of journals has this name, too.
        let tests = if is_of_tests { &code } else { unit_tests }.replace("fn sleep(", "");
        if tests.contains("::sleep(") || tests.contains(" sleep(") {
            sleeping.insert(file.display().to_string());
        }
    }
    let listed: BTreeSet<String> = SLEEPS.iter().map(|(file, _)| (*file).to_owned()).collect();
    assert_eq!(sleeping, listed, "wait with `testkit::eventually`, or list the file with its reason");
}
