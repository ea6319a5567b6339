//! A fresh database per test, on SQLite and on PostgreSQL.
//!
//! `WINDLASS_TEST_POSTGRES` is the URL of a server on which databases can be created. Without it tests fail, because a
//! test that skips PostgreSQL proves nothing about it. `WINDLASS_TEST_DATABASE=sqlite` asks for a quick first answer on
//! SQLite alone; `scripts/test` removes that variable.

use std::sync::atomic::{AtomicU64, Ordering};

use domain::Time;
use store::db::tx::{Operation, Param, Sql, Tx};
use store::{Clock, DatabaseUrl, Store, StoreError, StoreOptions};
use tempfile::TempDir;
use tokio_postgres::NoTls;

/// The role that the store connects as.
const SERVING: &str = "windlass_serving";

static NEXT: AtomicU64 = AtomicU64::new(0);

/// A migrated database with a clock that the test moves.
pub struct Database {
    /// On PostgreSQL with a plain role that owns only the schema, so that every test is subject to row-level security.
    pub url: DatabaseUrl,
    /// The same database with a superuser.
    pub admin: DatabaseUrl,
    pub store: Store,
    pub clock: Clock,
    folder: Option<TempDir>,
    /// The directory of the key that seals secrets: separate from the database, as in production.
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
        store.beat().await.expect("the service row exists");
        store.write(StartedLongAgo).await.expect("the service row exists");
        Self { url, admin, store, clock, folder, keys }
    }

    /// Another node on the same database, with the same clock.
    pub async fn another_node(&self) -> Store {
        open(&self.url, &self.clock, self.keys.path()).await
    }

    /// Advances the clock of all nodes of this database, while the service keeps sending heartbeats.
    pub async fn pass_ms(&self, millis: i64) {
        let since = self.store.read(ServiceSince).await.expect("the service row exists");
        self.clock.advance_ms(millis);
        self.store.write(ServiceHeartbeat { since: Some(since) }).await.expect("records a heartbeat");
    }

    /// Advances the clock to a few minutes past a full hour, so that what a test does next falls into one hour.
    pub async fn advance_to_hour_start(&self) {
        const HOUR_MS: i64 = 3_600_000;
        let past = self.clock.now().millis().rem_euclid(HOUR_MS);
        self.pass_ms(HOUR_MS - past + 300_000).await;
    }

    pub fn sqlite_folder(&self) -> Option<&std::path::Path> {
        self.folder.as_ref().map(TempDir::path)
    }
}

/// Records that the service has sent heartbeats until now and continues to, so that moving the clock is not an outage,
/// even on a slow machine.
pub struct ServiceHeartbeat {
    /// The start of service to restore, in case an engine has sent a heartbeat after the clock moved and detected an
    /// outage.
    pub since: Option<Time>,
}

/// How far in the future the heartbeat is. A statement that runs this late still detects no outage. The outages and
/// clock steps (`CLOCK_STEP_MS`) in tests are longer.
const HEARTBEAT_AHEAD_MS: i64 = 30_000;

/// Moves the start of service into the past.
struct StartedLongAgo;

const UP_SINCE: Sql = Sql::both(&["update service set since = $1 where id = 1"]);

impl Operation for StartedLongAgo {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        tx.execute(&UP_SINCE, &[Param::Time(tx.now().plus_s(-86_400))]).await.map(|_| ())
    }
}

const SERVED: Sql = Sql::both(&["update service set beat_at = $1, since = coalesce($2, since) where id = 1"]);
const SINCE: Sql = Sql::both(&["select since from service where id = 1"]);

struct ServiceSince;

impl Operation for ServiceSince {
    type Output = Time;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Time, StoreError> {
        let row = tx.query_opt(&SINCE, &[]).await?;
        row.ok_or_else(|| StoreError::unexpected("the service row is missing"))?.time(0)
    }
}

impl Operation for ServiceHeartbeat {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let until = tx.now().plus_ms(HEARTBEAT_AHEAD_MS);
        tx.execute(&SERVED, &[Param::Time(until), self.since.map_or(Param::Null, Param::Time)]).await.map(|_| ())
    }
}

async fn open(url: &DatabaseUrl, clock: &Clock, keys: &std::path::Path) -> Store {
    let key_file = Some(keys.join(store::KEY_FILE));
    let plain_claims = plain_claims();
    let options = StoreOptions { clock: clock.clone(), key_file, plain_claims, ..StoreOptions::default() };
    Store::open(url, options).await.expect("the database opens")
}

/// Creates an empty database on the test server.
async fn new_postgres_url() -> String {
    let server = test_server();
    let name = format!("windlass_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    sql(&server, &format!("drop database if exists {name}")).await;
    sql(&server, &format!("create database {name}")).await;
    let (base, _) = server.rsplit_once('/').expect("the URL contains a database name");
    format!("{base}/{name}")
}

/// True if this run tests claims without the fast path. `scripts/test` runs the conformance suite both ways.
#[expect(clippy::disallowed_methods, reason = "scripts/test selects the mode of a test run")]
fn plain_claims() -> bool {
    std::env::var_os("WINDLASS_TEST_PLAIN_CLAIMS").is_some()
}

/// True if the developer has asked for SQLite alone.
#[expect(clippy::disallowed_methods, reason = "the developer selects the databases of a test run")]
fn is_sqlite_only() -> bool {
    match std::env::var("WINDLASS_TEST_DATABASE").as_deref() {
        Err(_) => false,
        Ok("sqlite") => true,
        Ok(other) => panic!("WINDLASS_TEST_DATABASE can only be `sqlite`; it is `{other}`"),
    }
}

#[expect(clippy::disallowed_methods, reason = "scripts/test passes the address of PostgreSQL to tests")]
fn test_server() -> String {
    std::env::var("WINDLASS_TEST_POSTGRES")
        .expect("WINDLASS_TEST_POSTGRES must be the URL of a PostgreSQL server for tests; scripts/test sets it")
}

async fn sql(url: &str, statements: &str) {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the test server is reachable");
    let mut driver = tokio::task::JoinSet::new();
    driver.spawn(connection);
    client.batch_execute(statements).await.unwrap_or_else(|error| panic!("{statements}: {error:?}"));
    drop(client);
    driver.join_all().await;
}

/// Creates an empty schema and returns the URL of the role that owns it.
async fn serving_url(admin: &str) -> String {
    // The role belongs to the server, and other tests create it at the same time.
    let make = format!(
        "do $$ begin create role {SERVING} login;
             exception when duplicate_object or unique_violation then null; end $$;
         create schema windlass authorization {SERVING}"
    );
    sql(admin, &make).await;
    let (scheme, rest) = admin.split_once("://").expect("a URL has a scheme");
    let address = rest.split_once('@').map_or(rest, |(_, address)| address);
    format!("{scheme}://{SERVING}@{address}")
}

/// Runs a test on both databases, or on SQLite alone if the run is restricted to it.
pub async fn on_both(test: impl AsyncFn(Database)) {
    on_sqlite(&test).await;
    on_postgres(&test).await;
}

pub async fn on_sqlite(test: impl AsyncFn(Database)) {
    println!("on SQLite");
    test(Database::sqlite().await).await;
}

pub async fn on_postgres(test: impl AsyncFn(Database)) {
    if is_sqlite_only() {
        println!("not on PostgreSQL: WINDLASS_TEST_DATABASE is `sqlite`");
        return;
    }
    println!("on PostgreSQL");
    let db = Database::postgres().await;
    let DatabaseUrl::Postgres(admin) = db.admin.clone() else { unreachable!("it was opened on PostgreSQL") };
    test(db).await;
    // Thousands of databases would fill the disk. The database of a failed test stays for inspection.
    let (_, name) = admin.rsplit_once('/').expect("the URL contains a database name");
    sql(&test_server(), &format!("drop database {name} with (force)")).await;
}
