//! A fresh database per test, on SQLite and on PostgreSQL, and a temporary folder.
//!
//! `WINDLASS_TEST_POSTGRES` is the URL of a server on which databases can be created. Without it tests fail, because a
//! test that skips PostgreSQL proves nothing about it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio_postgres::NoTls;

use super::program::{CommandOutput, windlass};
use super::{TIMEOUT, eventually};

static NEXT: AtomicU64 = AtomicU64::new(0);

/// An empty database that no program has opened yet, and a folder for the other files of the test.
pub(crate) struct Fixture {
    pub(crate) url: String,
    folder: TempDir,
}

impl Fixture {
    pub(crate) fn sqlite() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Self { url: format!("sqlite:{}", folder.path().join("journey.db").display()), folder }
    }

    /// A SQLite file in a folder that the test provides.
    pub(crate) fn sqlite_in(folder: &Path) -> Self {
        let url = format!("sqlite:{}", folder.join("journey.db").display());
        Self { url, folder: tempfile::tempdir().expect("a temporary folder") }
    }

    pub(crate) async fn postgres() -> Self {
        Self::on_server(&test_server()).await
    }

    /// On a PostgreSQL server that the test started.
    pub(crate) async fn on_server(server: &str) -> Self {
        let name = format!("journey_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        sql(server, &format!("drop database if exists {name}")).await;
        // Autovacuum visits template1 from time to time, and CREATE DATABASE fails if it does not leave in time.
        sql(server, &format!("create database {name} template template0")).await;
        let (base, _) = server.rsplit_once('/').expect("the URL contains a database name");
        Self { url: format!("{base}/{name}"), folder: tempfile::tempdir().expect("a temporary folder") }
    }

    pub(crate) fn is_postgres(&self) -> bool {
        self.url.starts_with("postgres")
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs SQL directly on the database.
    pub(crate) async fn sql(&self, statements: &str) {
        match self.url.strip_prefix("sqlite:") {
            Some(path) => {
                let connection = rusqlite::Connection::open(path).expect("the file opens");
                connection.busy_timeout(TIMEOUT).expect("the connection accepts the setting");
                connection.execute_batch(statements).expect("the statements run");
            }
            None => sql(&self.url, statements).await,
        }
    }

    /// Runs a `select count(…)` directly on the database. PostgreSQL only.
    pub(crate) async fn count(&self, statement: &str) -> i64 {
        count(&self.url, statement).await
    }

    /// Runs SQL in another database of the same server, for example to close the connections to this one.
    /// `$database` stands for the name of this database.
    pub(crate) async fn admin_sql(&self, statements: &str) {
        let (base, name) = self.url.rsplit_once('/').expect("the URL contains a database name");
        sql(&format!("{base}/postgres"), &statements.replace("$database", name)).await;
    }

    /// Asserts that `windlass verify` finds no violation in the database.
    pub(crate) async fn verify(&self) {
        let CommandOutput { code, stdout, stderr } = windlass(&["verify", "--database", &self.url]).await;
        assert_eq!(code, Some(0), "{stdout}{stderr}");
        assert!(stdout.contains("all hold"), "{stdout}");
    }
}

/// Runs a `select count(…)` on a database of PostgreSQL.
pub(crate) async fn count(url: &str, statement: &str) -> i64 {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the server is reachable");
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    client.query_one(statement, &[]).await.expect("the query runs").get(0)
}

pub(crate) async fn sql(url: &str, statements: &str) {
    try_sql(url, statements).await.unwrap_or_else(|error| panic!("{statements}: {error:?}"));
}

async fn try_sql(url: &str, statements: &str) -> Result<(), tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the PostgreSQL server is reachable");
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let result = client.batch_execute(statements).await;
    drop(client);
    driver.join_all().await;
    result
}

#[expect(clippy::disallowed_methods, reason = "scripts/test passes the address of PostgreSQL to tests")]
fn test_server() -> String {
    std::env::var("WINDLASS_TEST_POSTGRES")
        .expect("WINDLASS_TEST_POSTGRES must be the URL of a PostgreSQL server for tests; scripts/test sets it")
}

/// Runs a test on both databases.
pub(crate) async fn on_both(test: impl AsyncFn(Fixture)) {
    on_sqlite(&test).await;
    on_postgres(&test).await;
}

pub(crate) async fn on_sqlite(test: impl AsyncFn(Fixture)) {
    println!("on SQLite");
    test(Fixture::sqlite()).await;
}

pub(crate) async fn on_postgres(test: impl AsyncFn(Fixture)) {
    println!("on PostgreSQL");
    let fixture = Fixture::postgres().await;
    let url = fixture.url.clone();
    test(fixture).await;
    // Hundreds of databases would fill the disk. The database of a failed test stays for inspection.
    let (base, name) = url.rsplit_once('/').expect("the URL contains a database name");
    let (admin, drop) = (format!("{base}/postgres"), format!("drop database if exists {name} with (force)"));
    // PostgreSQL waits only five seconds for connections to end, which is too short for one that writes to a busy disk.
    eventually("the database is dropped", async || try_sql(&admin, &drop).await.ok()).await;
}
