//! Every statement of the store, read from its source, is one that both databases accept.

use std::fs;
use std::path::{Path, PathBuf};

use store::tx::{Operation, Sql, Tx};
use store::{Store, StoreError};
use testkit::on_both;

/// A constant of the store's source.
#[derive(Clone, Debug)]
pub(crate) struct Statement {
    /// Below `src`, with `::` between file and name.
    pub(crate) name: String,
    pub(crate) sql: Sql,
}

/// The statement with this name: `jobs/claim.rs::TAKE`.
pub(crate) fn statement(name: &str) -> Sql {
    let found = all().into_iter().find(|statement| statement.name == name);
    found.unwrap_or_else(|| panic!("no statement is called {name}")).sql
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
            let (sql, after) = read(after).unwrap_or_else(|| panic!("{below}::{constant} is not read"));
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

/// `Sql::both(&["…"])`, `Sql::sqlite(&["…", …])`, `Sql::postgres("…")` or `Sql::new(&["…", …], "…")`, and what follows it.
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

/// String literals up to the closing character, and what follows it.
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
                                // The line goes on after its indentation.
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

async fn refused(store: &Store, statements: &[Statement]) -> Vec<String> {
    let mut refused = Vec::new();
    for statement in statements {
        if let Err(error) = store.read(Prepare { sql: statement.sql }).await {
            refused.push(format!("{}: {error:?}", statement.name));
        }
    }
    refused
}

#[tokio::test]
async fn x8_both_databases_accept_every_statement() {
    let statements = all();
    assert!(statements.len() > 90, "only {} were found", statements.len());
    on_both(async |db| assert_eq!(refused(&db.store, &statements).await, Vec::<String>::new())).await;
}

#[tokio::test]
async fn a_statement_with_a_typo_is_noticed() {
    let typo = Statement { name: "typo".into(), sql: Sql::both(&["select id from jobs where lain = $1"]) };
    on_both(async |db| assert_eq!(refused(&db.store, std::slice::from_ref(&typo)).await.len(), 1)).await;
}

#[test]
fn statements_are_read_as_the_compiler_reads_them() {
    let text = r#" Sql::new(&["a \"b\"", "c"], "d \
                   e") ;"#;
    let (sql, after) = read(text).expect("it reads");
    assert_eq!((sql.sqlite, sql.postgres, after), (&["a \"b\"", "c"][..], "d e", " ;"));
    let sql = statement("jobs/claim.rs::TAKE");
    assert!(sql.sqlite[1].starts_with("update or fail jobs set state = 'working'"));
    assert!(sql.postgres.ends_with("j.webhook"));
}
