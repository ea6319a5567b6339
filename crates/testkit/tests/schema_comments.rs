//! The descriptions of the schema: every object has one on PostgreSQL, and SQLite has the same texts as SQL comments.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The descriptions of tables and views by `name`, of columns by `table.column`, of functions by `name()`.
type Descriptions = BTreeMap<String, String>;

/// The up scripts of one database, in order: file name and text.
fn scripts(database: &str) -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../store/migrations").join(database);
    let mut scripts: Vec<(String, String)> = std::fs::read_dir(folder)
        .expect("the folder exists")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.to_string_lossy().ends_with(".up.sql"))
        .map(|path| {
            let name = path.file_name().expect("a file").to_string_lossy().into_owned();
            (name, std::fs::read_to_string(path).expect("readable"))
        })
        .collect();
    scripts.sort();
    scripts
}

fn first_word(text: &str) -> &str {
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_' && letter != '.').next().unwrap_or_default()
}

/// `'It' 's'` and `'It''s'`, as SQL concatenates and escapes them.
fn unquoted(literals: &str) -> String {
    let (mut text, mut is_inside) = (String::new(), false);
    let mut letters = literals.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\'' if is_inside && letters.peek() == Some(&'\'') => text.extend(letters.next()),
            '\'' => is_inside = !is_inside,
            letter if is_inside => text.push(letter),
            _ => {}
        }
    }
    text
}

/// The descriptions that a script of PostgreSQL sets.
fn postgres_descriptions(script: &str) -> Descriptions {
    let mut found = Descriptions::new();
    for statement in script.split("\ncomment on ").skip(1) {
        let (kind, rest) = statement.split_once(' ').expect("a kind");
        let name = if kind == "function" { format!("{}()", first_word(rest)) } else { first_word(rest).to_owned() };
        let (_, literals) = statement.split_once(" is").expect("a text");
        let end = literals.find("';").expect("the statement ends");
        found.insert(name, unquoted(&literals[..=end]));
    }
    found
}

/// The tables, views and functions that a script of PostgreSQL creates.
fn postgres_objects(script: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in script.lines() {
        let line = line.replace("create or replace ", "create ").replace("create unlogged ", "create ");
        if let Some(name) = line.strip_prefix("create table ").or_else(|| line.strip_prefix("create view ")) {
            found.insert(first_word(name).to_owned());
        } else if let Some(name) = line.strip_prefix("create function ") {
            found.insert(format!("{}()", first_word(name)));
        }
    }
    found
}

/// What a script of SQLite defines: the descriptions, and the names of all tables, views and added columns.
#[derive(Default)]
struct SqliteScript {
    descriptions: Descriptions,
    defined: BTreeSet<String>,
}

impl SqliteScript {
    /// A comment describes the line below it. The first comment of a table or view, up to an empty line, describes the
    /// table or view.
    fn read(script: &str) -> Self {
        let mut found = Self::default();
        let mut table: Option<String> = None;
        let mut pending: Vec<&str> = Vec::new();
        let mut opens = false;
        for line in script.lines() {
            let text = line.trim();
            if let Some(comment) = text.strip_prefix("--") {
                pending.push(comment.trim());
                continue;
            }
            let comment = std::mem::take(&mut pending).join(" ");
            match &table {
                Some(name) if opens && (text.is_empty() || text.starts_with("select") || text.starts_with("with")) => {
                    found.describe(name.clone(), &comment);
                }
                Some(name) if line.starts_with("    ") && !line.starts_with("     ") && !is_constraint(text) => {
                    found.describe(format!("{name}.{}", first_word(text)), &comment);
                }
                _ => {}
            }
            opens = false;
            if let Some(name) = text.strip_prefix("create table ").or_else(|| text.strip_prefix("create view ")) {
                table = Some(first_word(name).to_owned());
                found.defined.extend(table.clone());
                opens = true;
            } else if let Some(rest) = text.strip_prefix("alter table ") {
                if let Some((_, column)) = rest.split_once(" add column ") {
                    let name = format!("{}.{}", first_word(rest), first_word(column));
                    found.defined.insert(name.clone());
                    found.describe(name, &comment);
                } else if let Some((_, new)) = rest.split_once(" rename to ") {
                    found.rename(first_word(rest), first_word(new));
                }
            }
            if text.ends_with(';') {
                table = None;
            }
        }
        found
    }

    fn describe(&mut self, name: String, comment: &str) {
        if !comment.is_empty() {
            self.descriptions.insert(name, comment.to_owned());
        }
    }

    /// A table that the script created under another name, to copy rows into it.
    fn rename(&mut self, old: &str, new: &str) {
        if self.defined.remove(old) {
            self.defined.insert(new.to_owned());
            let renamed = |name: &String| match name.strip_prefix(old) {
                Some(rest) if rest.is_empty() || rest.starts_with('.') => format!("{new}{rest}"),
                _ => name.clone(),
            };
            self.descriptions = self.descriptions.iter().map(|(name, text)| (renamed(name), text.clone())).collect();
        }
    }

    /// True if the script defines the table, the view, or the column itself.
    fn defines(&self, name: &str) -> bool {
        let table = name.split('.').next().unwrap_or_default();
        self.defined.contains(name) || self.defined.contains(table)
    }
}

fn is_constraint(text: &str) -> bool {
    ["primary key", "unique (", "check (", "foreign key", ")"].iter().any(|start| text.starts_with(start))
}

#[test]
fn every_table_view_and_function_of_postgres_has_a_description() {
    let (mut objects, mut described) = (BTreeSet::new(), BTreeSet::new());
    for (_, script) in scripts("postgres") {
        objects.extend(postgres_objects(&script));
        described.extend(postgres_descriptions(&script).into_keys());
    }
    assert!(objects.len() > 70, "found only {} objects", objects.len());
    let missing: Vec<&String> = objects.difference(&described).collect();
    assert!(missing.is_empty(), "add `comment on … is …`: {missing:?}");
}

#[test]
fn both_databases_describe_the_schema_in_the_same_words() {
    let (sqlite, postgres) = (scripts("sqlite"), scripts("postgres"));
    let names = |scripts: &[(String, String)]| scripts.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&sqlite), names(&postgres));
    let (mut current, mut compared, mut differences) = (Descriptions::new(), 0, Vec::new());
    for ((file, sqlite), (_, postgres)) in sqlite.iter().zip(&postgres) {
        let (sqlite, added) = (SqliteScript::read(sqlite), postgres_descriptions(postgres));
        current.extend(added.clone());
        for (name, text) in &sqlite.descriptions {
            compared += 1;
            if current.get(name) != Some(text) {
                differences.push(format!("{file}: {name}\n  SQLite: {text}\n  PostgreSQL: {:?}", current.get(name)));
            }
        }
        // SQLite cannot change the comment of a column that an earlier script defined.
        let is_missing = |name: &&String| sqlite.defines(name) && !sqlite.descriptions.contains_key(*name);
        differences.extend(added.keys().filter(is_missing).map(|name| format!("{file}: {name} on PostgreSQL only")));
    }
    assert!(compared > 400, "found only {compared} descriptions");
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
