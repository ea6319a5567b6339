//! Prepares every SQL constant of the store's source on both databases.

use std::fs;
use std::path::{Path, PathBuf};

use store::db::tx::{Operation, Sql, Tx};
use store::{Store, StoreError};
use testkit::on_both;

/// An SQL constant of the store's source.
#[derive(Clone, Debug)]
pub(crate) struct Statement {
    /// Path below `src` and constant name, separated by `::`.
    pub(crate) name: String,
    pub(crate) sql: Sql,
}

/// Returns the statement with this name, such as `queue/claim/fill.rs::TAKE`.
pub(crate) fn statement(name: &str) -> Sql {
    let found = all().into_iter().find(|statement| statement.name == name);
    found.unwrap_or_else(|| panic!("no statement is named {name}")).sql
}

fn all() -> Vec<Statement> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut statements = Vec::new();
    for file in files(&source) {
        let text = fs::read_to_string(&file).expect("a source file reads");
        let below = file.strip_prefix(&source).expect("below src").display().to_string();
        let mut rest = text.as_str();
        while let Some((before, after)) = rest.split_once(": Sql =") {
            let constant = before.rsplit_once("const ").expect("a statement is a constant").1;
            let (sql, after) = read(after).unwrap_or_else(|| panic!("cannot parse {below}::{constant}"));
            statements.push(Statement { name: format!("{below}::{constant}"), sql });
            rest = after;
        }
    }
    statements
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder reads") {
        let path = entry.expect("an entry reads").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Parses `Sql::both(&["…"])`, `Sql::sqlite(&["…", …])`, `Sql::postgres("…")` or `Sql::new(&["…", …], "…")`. Returns
/// the statement and the remaining text.
fn read(text: &str) -> Option<(Sql, &str)> {
    let (head, body) = text.split_once('(')?;
    let head = head.trim();
    if head == "Sql::postgres" {
        let (postgres, after) = literals(body, ')')?;
        return Some((Sql::postgres(postgres.first()?), after));
    }
    let (list, after) = body.split_once('[')?;
    if list.trim() != "&" {
        return None;
    }
    let (sqlite, after) = literals(after, ']')?;
    let sqlite: &'static [&'static str] = Box::leak(sqlite.into_boxed_slice());
    match head {
        "Sql::both" => Some((Sql { sqlite, postgres: sqlite[0] }, after)),
        "Sql::sqlite" => Some((Sql::sqlite(sqlite), after)),
        "Sql::new" => {
            let (postgres, after) = literals(after, ')')?;
            Some((Sql { sqlite, postgres: postgres.first()? }, after))
        }
        _ => None,
    }
}

/// Parses string literals up to the closing character. Returns them and the remaining text.
fn literals(text: &str, close: char) -> Option<(Vec<&'static str>, &str)> {
    let mut found = Vec::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => {
                let mut literal = String::new();
                loop {
                    match chars.next()?.1 {
                        '"' => break,
                        '\\' => match chars.next()?.1 {
                            'n' => literal.push('\n'),
                            '\n' => {
                                // A continued line resumes after its indentation.
                                let space = chars.as_str().len() - chars.as_str().trim_start().len();
                                chars.by_ref().take(space).for_each(|_| ());
                            }
                            escaped @ ('"' | '\\') => literal.push(escaped),
                            _ => return None,
                        },
                        plain => literal.push(plain),
                    }
                }
                found.push(&*literal.leak());
            }
            _ if c == close => return Some((found, &text[at + c.len_utf8()..])),
            ',' | ' ' | '\n' => {}
            _ => return None,
        }
    }
    None
}

struct Prepare {
    sql: Sql,
}

impl Operation for Prepare {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        tx.prepare(&self.sql).await
    }
}

async fn rejected(store: &Store, statements: &[Statement]) -> Vec<String> {
    let mut rejected = Vec::new();
    for statement in statements {
        if let Err(error) = store.read(Prepare { sql: statement.sql }).await {
            rejected.push(format!("{}: {error:?}", statement.name));
        }
    }
    rejected
}

/// Requirement X8.
#[tokio::test]
async fn both_databases_accept_every_statement() {
    let statements = all();
    assert!(statements.len() > 90, "found only {}", statements.len());
    on_both(async |db| assert_eq!(rejected(&db.store, &statements).await, Vec::<String>::new())).await;
}

#[tokio::test]
async fn a_statement_with_a_typo_is_rejected() {
    let typo = Statement { name: "typo".into(), sql: Sql::both(&["select id from jobs where lain = $1"]) };
    on_both(async |db| assert_eq!(rejected(&db.store, std::slice::from_ref(&typo)).await.len(), 1)).await;
}

#[test]
fn statements_are_parsed_from_the_source_like_rust_literals() {
    let text = r#" Sql::new(&["a \"b\"", "c"], "d \
                   e") ;"#;
    let (sql, after) = read(text).expect("parses");
    assert_eq!((sql.sqlite, sql.postgres, after), (&["a \"b\"", "c"][..], "d e", " ;"));
    let sql = statement("queue/claim/fill.rs::TAKE");
    assert!(sql.sqlite[1].starts_with("update or fail jobs set state = $10"));
    assert!(sql.postgres.ends_with("as has_webhook"));
}
