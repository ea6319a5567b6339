//! A fresh database per test, on SQLite and on PostgreSQL.
//!
//! `WINDLASS_TEST_POSTGRES` names a server on which databases may be made. Without it a test fails: one that skipped
//! PostgreSQL would prove nothing about it.

use std::sync::atomic::{AtomicU64, Ordering};

use store::tx::{Operation, Param, Sql, Tx};
use store::{Clock, DatabaseUrl, Store, StoreError, StoreOptions};
use tempfile::TempDir;
use tokio_postgres::NoTls;

/// The role that serves.
const SERVING: &str = "windlass_serving";

static NEXT: AtomicU64 = AtomicU64::new(0);

/// A migrated database with a clock that the test moves. It is gone when dropped or, on PostgreSQL, when the server is.
pub struct Database {
    /// On PostgreSQL as a plain role that owns the schema and nothing else, so that every test meets the wall between tenants.
    pub url: DatabaseUrl,
    /// The same database as who may do everything.
    pub admin: DatabaseUrl,
    pub store: Store,
    pub clock: Clock,
    folder: Option<TempDir>,
    /// Where the key is that secrets are sealed with: apart from the database, as it should be.
    keys: TempDir,
}

impl Database {
    pub async fn sqlite() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let url = DatabaseUrl::Sqlite(folder.path().join("test.db"));
        Self::open(url.clone(), url, Some(folder)).await
    }

    pub async fn postgres() -> Self {
        let admin = new_postgres_url().await;
        let url = DatabaseUrl::Postgres(serving_url(&admin).await);
        Self::open(url, DatabaseUrl::Postgres(admin), None).await
    }

    async fn open(url: DatabaseUrl, admin: DatabaseUrl, folder: Option<TempDir>) -> Self {
        let clock = Clock::system();
        let keys = tempfile::tempdir().expect("a temporary folder");
        let store = open(&url, &clock, keys.path()).await;
        store.migrate_up().await.expect("the migrations run");
        store.beat().await.expect("the service row is there");
        Self { url, admin, store, clock, folder, keys }
    }

    /// Another node on the same database, with the same clock.
    pub async fn another_node(&self) -> Store {
        open(&self.url, &self.clock, self.keys.path()).await
    }

    /// Moves time for every node of this database, with the service beating all the while.
    pub async fn pass_ms(&self, millis: i64) {
        self.clock.advance_ms(millis);
        self.store.write(Served).await.expect("the service beats");
    }

    pub fn sqlite_folder(&self) -> Option<&std::path::Path> {
        self.folder.as_ref().map(TempDir::path)
    }
}

/// Says that the service has beaten until now: moving the clock is no outage, however slow the machine is.
pub struct Served;

const SERVED: Sql = Sql::both(&["update service set beat_at = $1 where id = 1"]);

impl Operation for Served {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let now = tx.now();
        tx.execute(&SERVED, &[Param::Time(now)]).await.map(|_| ())
    }
}

async fn open(url: &DatabaseUrl, clock: &Clock, keys: &std::path::Path) -> Store {
    let key_file = Some(keys.join(store::KEY_FILE));
    let options = StoreOptions { clock: clock.clone(), key_file, ..StoreOptions::default() };
    Store::open(url, options).await.expect("the database opens")
}

/// A new, empty database on the test server.
#[expect(clippy::disallowed_methods, reason = "tests are told where PostgreSQL is by the script that started it")]
pub(crate) async fn new_postgres_url() -> String {
    let server = std::env::var("WINDLASS_TEST_POSTGRES")
        .expect("WINDLASS_TEST_POSTGRES names the PostgreSQL server to test on; scripts/test sets it");
    let (client, connection) = tokio_postgres::connect(&server, NoTls).await.expect("the test server answers");
    let mut driver = tokio::task::JoinSet::new();
    driver.spawn(connection);
    let name = format!("windlass_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    client.batch_execute(&format!("drop database if exists {name}")).await.expect("an old database goes");
    client.batch_execute(&format!("create database {name}")).await.expect("a database is made");
    drop(client);
    driver.join_all().await;
    let (base, _) = server.rsplit_once('/').expect("the URL names a database");
    format!("{base}/{name}")
}

/// The same database for a plain role that owns an empty schema in it.
pub(crate) async fn serving_url(admin: &str) -> String {
    let (client, connection) = tokio_postgres::connect(admin, NoTls).await.expect("the test server answers");
    let mut driver = tokio::task::JoinSet::new();
    driver.spawn(connection);
    // The role is the whole server's, and tests make it at the same time.
    let make = format!(
        "do $$ begin create role {SERVING} login;
             exception when duplicate_object or unique_violation then null; end $$;
         create schema windlass authorization {SERVING}"
    );
    client.batch_execute(&make).await.expect("a plain role gets its schema");
    drop(client);
    driver.join_all().await;
    let (scheme, rest) = admin.split_once("://").expect("a URL has a scheme");
    let place = rest.split_once('@').map_or(rest, |(_, place)| place);
    format!("{scheme}://{SERVING}@{place}")
}

/// Runs a test on both databases.
pub async fn on_both(test: impl AsyncFn(Database)) {
    on_sqlite(&test).await;
    on_postgres(&test).await;
}

pub async fn on_sqlite(test: impl AsyncFn(Database)) {
    println!("on SQLite");
    test(Database::sqlite().await).await;
}

pub async fn on_postgres(test: impl AsyncFn(Database)) {
    println!("on PostgreSQL");
    test(Database::postgres().await).await;
}
