//! A fresh database per test, on SQLite and on PostgreSQL.
//!
//! `WINDLASS_TEST_POSTGRES` names a server on which databases may be made. Without it a test fails: one that skipped
//! PostgreSQL would prove nothing about it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio_postgres::NoTls;

use super::program::{Done, windlass};
use super::{PATIENCE, until};

static NEXT: AtomicU64 = AtomicU64::new(0);

/// An empty database that nothing has opened yet, and a folder for whatever else the journey writes.
pub(crate) struct Place {
    pub(crate) url: String,
    folder: TempDir,
}

impl Place {
    pub(crate) fn sqlite() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Self { url: format!("sqlite:{}", folder.path().join("journey.db").display()), folder }
    }

    /// A SQLite file in a folder of the test's own.
    pub(crate) fn sqlite_in(folder: &Path) -> Self {
        let url = format!("sqlite:{}", folder.join("journey.db").display());
        Self { url, folder: tempfile::tempdir().expect("a temporary folder") }
    }

    pub(crate) async fn postgres() -> Self {
        Self::on_server(&test_server()).await
    }

    /// On a PostgreSQL server of the test's own.
    pub(crate) async fn on_server(server: &str) -> Self {
        let name = format!("journey_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        sql(server, &format!("drop database if exists {name}")).await;
        // Not from template1, which autovacuum looks into now and then: PostgreSQL would wait for it, but not for long.
        sql(server, &format!("create database {name} template template0")).await;
        let (base, _) = server.rsplit_once('/').expect("the URL names a database");
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

    /// Runs SQL on the database, past the program.
    pub(crate) async fn sql(&self, statements: &str) {
        match self.url.strip_prefix("sqlite:") {
            Some(path) => {
                let connection = rusqlite::Connection::open(path).expect("the file opens");
                connection.busy_timeout(PATIENCE).expect("the connection takes the setting");
                connection.execute_batch(statements).expect("the statements run");
            }
            None => sql(&self.url, statements).await,
        }
    }

    /// What a statement counts, past the program; PostgreSQL only.
    pub(crate) async fn count(&self, statement: &str) -> i64 {
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await.expect("the server answers");
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        client.query_one(statement, &[]).await.expect("it is counted").get(0)
    }

    /// Runs SQL on the server beside the database, say to close its connections.
    pub(crate) async fn sql_beside(&self, statements: &str) {
        let (base, name) = self.url.rsplit_once('/').expect("the URL names a database");
        sql(&format!("{base}/postgres"), &statements.replace("$database", name)).await;
    }

    /// `windlass verify` on the database finds every promise kept.
    pub(crate) async fn verify(&self) {
        let Done { code, stdout, stderr } = windlass(&["verify", "--database", &self.url]).await;
        assert_eq!(code, Some(0), "{stdout}{stderr}");
        assert!(stdout.contains("all hold"), "{stdout}");
    }
}

async fn sql(url: &str, statements: &str) {
    try_sql(url, statements).await.unwrap_or_else(|error| panic!("{statements}: {error:?}"));
}

async fn try_sql(url: &str, statements: &str) -> Result<(), tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the PostgreSQL server answers");
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let done = client.batch_execute(statements).await;
    drop(client);
    driver.join_all().await;
    done
}

#[expect(clippy::disallowed_methods, reason = "tests are told where PostgreSQL is by the script that started it")]
fn test_server() -> String {
    std::env::var("WINDLASS_TEST_POSTGRES")
        .expect("WINDLASS_TEST_POSTGRES names the PostgreSQL server to test on; scripts/test sets it")
}

/// Runs a journey on both databases.
pub(crate) async fn on_both(test: impl AsyncFn(Place)) {
    on_sqlite(&test).await;
    on_postgres(&test).await;
}

pub(crate) async fn on_sqlite(test: impl AsyncFn(Place)) {
    println!("on SQLite");
    test(Place::sqlite()).await;
}

pub(crate) async fn on_postgres(test: impl AsyncFn(Place)) {
    println!("on PostgreSQL");
    let place = Place::postgres().await;
    let url = place.url.clone();
    test(place).await;
    // Hundreds of them would fill the disk. One whose test failed stays to be looked at.
    let (base, name) = url.rsplit_once('/').expect("the URL names a database");
    let (beside, drop) = (format!("{base}/postgres"), format!("drop database if exists {name} with (force)"));
    // PostgreSQL waits five seconds for connections to go, which is not much for one that writes to a busy disk.
    until("the database is dropped", async || try_sql(&beside, &drop).await.ok()).await;
}
