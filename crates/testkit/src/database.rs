//! A fresh database per test, on SQLite and on PostgreSQL.
//!
//! `WINDLASS_TEST_POSTGRES` names a server on which databases may be made. Without it a test fails: one that skipped
//! PostgreSQL would prove nothing about it.

use std::sync::atomic::{AtomicU64, Ordering};

use domain::Time;
use store::tx::{Operation, Param, Sql, Tx};
use store::{Clock, DatabaseUrl, Store, StoreError, StoreOptions};
use tempfile::TempDir;
use tokio_postgres::NoTls;

/// The role that serves.
const SERVING: &str = "windlass_serving";

static NEXT: AtomicU64 = AtomicU64::new(0);

/// A migrated database with a clock that the test moves.
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
        store.write(UpForLong).await.expect("the service row is there");
        Self { url, admin, store, clock, folder, keys }
    }

    /// Another node on the same database, with the same clock.
    pub async fn another_node(&self) -> Store {
        open(&self.url, &self.clock, self.keys.path()).await
    }

    /// Moves time for every node of this database, with the service beating all the while.
    pub async fn pass_ms(&self, millis: i64) {
        let since = self.store.read(ServedSince).await.expect("the service has beaten");
        self.clock.advance_ms(millis);
        self.store.write(Served { since: Some(since) }).await.expect("the service beats");
    }

    /// Moves time to a few minutes past a full hour: what a test does next falls into one hour.
    pub async fn begin_an_hour(&self) {
        const HOUR_MS: i64 = 3_600_000;
        let past = self.clock.now().millis().rem_euclid(HOUR_MS);
        self.pass_ms(HOUR_MS - past + 300_000).await;
    }

    pub fn sqlite_folder(&self) -> Option<&std::path::Path> {
        self.folder.as_ref().map(TempDir::path)
    }
}

/// Says that the service has beaten until now and goes on beating: moving the clock is no outage, however slow the
/// machine is.
pub struct Served {
    /// From since when, where an engine may have beaten between the clock's move and this, and taken it for an outage.
    pub since: Option<Time>,
}

/// How far ahead it has beaten: a statement that comes this late still meets no outage. The outages that tests make are
/// longer, and so is what a clock has come back by (`CLOCK_STEP_MS`).
const SERVED_AHEAD_MS: i64 = 30_000;

/// The service has not just started.
struct UpForLong;

const UP_SINCE: Sql = Sql::both(&["update service set since = $1 where id = 1"]);

impl Operation for UpForLong {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        tx.execute(&UP_SINCE, &[Param::Time(tx.now().plus_s(-86_400))]).await.map(|_| ())
    }
}

const SERVED: Sql = Sql::both(&["update service set beat_at = $1, since = coalesce($2, since) where id = 1"]);
const SINCE: Sql = Sql::both(&["select since from service where id = 1"]);

struct ServedSince;

impl Operation for ServedSince {
    type Output = Time;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Time, StoreError> {
        let row = tx.query_opt(&SINCE, &[]).await?;
        row.ok_or_else(|| StoreError::unexpected("the service row is missing"))?.time(0)
    }
}

impl Operation for Served {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let until = tx.now().plus_ms(SERVED_AHEAD_MS);
        tx.execute(&SERVED, &[Param::Time(until), self.since.map_or(Param::Null, Param::Time)]).await.map(|_| ())
    }
}

async fn open(url: &DatabaseUrl, clock: &Clock, keys: &std::path::Path) -> Store {
    let key_file = Some(keys.join(store::KEY_FILE));
    let options = StoreOptions { clock: clock.clone(), key_file, ..StoreOptions::default() };
    Store::open(url, options).await.expect("the database opens")
}

/// A new, empty database on the test server.
async fn new_postgres_url() -> String {
    let server = test_server();
    let name = format!("windlass_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    sql(&server, &format!("drop database if exists {name}")).await;
    sql(&server, &format!("create database {name}")).await;
    let (base, _) = server.rsplit_once('/').expect("the URL names a database");
    format!("{base}/{name}")
}

#[expect(clippy::disallowed_methods, reason = "tests are told where PostgreSQL is by the script that started it")]
fn test_server() -> String {
    std::env::var("WINDLASS_TEST_POSTGRES")
        .expect("WINDLASS_TEST_POSTGRES names the PostgreSQL server to test on; scripts/test sets it")
}

async fn sql(url: &str, statements: &str) {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the test server answers");
    let mut driver = tokio::task::JoinSet::new();
    driver.spawn(connection);
    client.batch_execute(statements).await.unwrap_or_else(|error| panic!("{statements}: {error:?}"));
    drop(client);
    driver.join_all().await;
}

/// The same database for a plain role that owns an empty schema in it.
async fn serving_url(admin: &str) -> String {
    // The role is the whole server's, and tests make it at the same time.
    let make = format!(
        "do $$ begin create role {SERVING} login;
             exception when duplicate_object or unique_violation then null; end $$;
         create schema windlass authorization {SERVING}"
    );
    sql(admin, &make).await;
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
    let db = Database::postgres().await;
    let DatabaseUrl::Postgres(admin) = db.admin.clone() else { unreachable!("it was opened on PostgreSQL") };
    test(db).await;
    // A thousand of them would fill the disk. One whose test failed stays to be looked at.
    let (_, name) = admin.rsplit_once('/').expect("the URL names a database");
    sql(&test_server(), &format!("drop database {name} with (force)")).await;
}
