//! PostgreSQL through a connection pool, directly or through a pooler in transaction mode.

use std::time::Duration;

use deadpool::Runtime;
use deadpool::managed::{BuildError, QueueMode};
use deadpool_postgres::{Manager, ManagerConfig, RecyclingMethod};
use domain::Time;
use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio_postgres::SimpleQueryMessage;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use super::failure::{Failure, is_conflict, naming, pool_error, postgres_error};
use super::opening::{BEGIN, BEGIN_IN_SESSION, BEGIN_READING, TIME, begin_columns, lazy_begin, session_settings};
use super::pooler::{Pooler, is_pooled};
use super::row::Row;
use super::session::{ConnectionPool, PooledConnection, SessionManager};
use super::tls::Address;
use super::value::{Column, Param};
use super::{Driver, Operation, Prefetch, Tx};
use crate::db::clock::Clock;
use crate::db::row_level_security::tenant_setting;
use crate::db::tx::db_clock::DbClock;
use crate::db::tx::deferred;
use crate::db::tx::deferred::{DeferredStatement, LazyTransaction};
use crate::error::StoreError;

const CONNECTIONS: usize = 16;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of TCP keepalives, so that firewalls keep idle connections open.
const KEEPALIVES_IDLE: Duration = Duration::from_secs(30);
/// The keepalive interval of the driver if the URL sets none.
const DRIVERS_KEEPALIVES: Duration = Duration::from_secs(2 * 60 * 60);

pub(crate) struct Postgres {
    pool: ConnectionPool,
    clock: Clock,
    db_clock: DbClock,
    /// Statements are prepared once per connection. False behind a pooler, which hands out another session for each
    /// transaction.
    prepared: bool,
}

impl Postgres {
    pub(crate) async fn connect(url: &str, clock: Clock, pooler: Pooler) -> Result<Self, StoreError> {
        let Address { mut config, tls } = Address::parse(url)?;
        config.application_name("windlass").connect_timeout(CONNECT_TIMEOUT);
        if config.get_keepalives_idle() == DRIVERS_KEEPALIVES {
            config.keepalives_idle(KEEPALIVES_IDLE);
        }
        let build = |settings: String| {
            let fast = ManagerConfig { recycling_method: RecyclingMethod::Fast };
            let manager = Manager::from_config(config.clone(), tls.clone(), fast);
            ConnectionPool::builder(SessionManager { manager, settings })
                .max_size(CONNECTIONS)
                // The connection that was used last has warm plans and caches.
                .queue_mode(QueueMode::Lifo)
                .wait_timeout(Some(Duration::from_secs(10)))
                .create_timeout(Some(CONNECT_TIMEOUT))
                .runtime(Runtime::Tokio1)
                .build()
                .map_err(|error: BuildError| StoreError::Unusable(error.to_string()))
        };
        let is_pooled = match pooler {
            Pooler::Detect => is_pooled(&config, &tls).await.map_err(|error| naming(&config, error))?,
            Pooler::Transaction => true,
            Pooler::None => false,
        };
        let pool = build(if is_pooled { String::new() } else { session_settings() })?;
        // An address or a password that is wrong is reported now, and not with the first request.
        drop(pool.get().await.map_err(|error| naming(&config, pool_error(error).error))?);
        Ok(Self { pool, clock, db_clock: DbClock::default(), prepared: !is_pooled })
    }

    pub(crate) fn is_behind_a_pooler(&self) -> bool {
        !self.prepared
    }

    /// Runs an operation that is built when a connection is available.
    pub(crate) async fn write<O: Operation>(&self, make: impl FnOnce() -> O) -> Result<O::Output, StoreError> {
        self.run(make, CommitMode::Durable).await
    }

    pub(crate) async fn read<O: Operation>(&self, operation: O) -> Result<O::Output, StoreError> {
        self.run(|| operation, CommitMode::FireAndForget).await
    }

    async fn run<O: Operation>(&self, make: impl FnOnce() -> O, ending: CommitMode) -> Result<O::Output, StoreError> {
        let mut operation = Late { made: None, make: Some(make) };
        let mut tries = 1;
        loop {
            let client = self.pool.get().await.map_err(|error| pool_error(error).error)?;
            match self.attempt(client, &mut operation, ending).await {
                Err(failure) if failure.again && tries < O::TRIES => tries += 1,
                result => return result.map_err(|failure| failure.error),
            }
        }
    }

    async fn attempt<O: Operation, F: FnOnce() -> O>(
        &self,
        client: PooledConnection,
        operation: &mut Late<O, F>,
        ending: CommitMode,
    ) -> Result<O::Output, Failure> {
        // If the caller is dropped in a transaction, the connection must not return to the pool.
        let mut guard = Guard { client: Some(client) };
        let client = guard.client.as_ref().expect("held until the end");
        let prepared = self.prepared;
        let (prefetched, deferred) = (Vec::new(), Vec::new());
        let db_clock = &self.db_clock;
        let mut driver = PostgresTx { client, db_clock, prepared, failed: None, prefetched, opening: None, deferred };
        // The operation is built as late as possible, so that more requests share it.
        let database_now = if O::LAZY_BEGIN { Some(self.time(client).await?) } else { None };
        let operation = operation.made();
        let tenants = tenant_setting(operation.tenants());
        let (now, trigger_version) = match database_now {
            Some(now) => {
                driver.opening = Some(lazy_begin(self.begin_text(), &tenants));
                (now, None)
            }
            None => self.begin(&mut driver, operation, &tenants, ending).await?,
        };
        let now = now.plus_ms(self.clock.shift_ms());
        let mut tx = Tx { driver: Driver::Postgres(driver), now, trigger_version, tenants };
        let result = operation.run(&mut tx).await;
        let tenants = tx.tenants;
        let (failed, opening, deferred) = match tx.driver {
            Driver::Postgres(driver) => (driver.failed, driver.opening, driver.deferred),
            Driver::Sqlite(_) => (None, None, Vec::new()),
        };
        match result {
            Ok(output) if ending == CommitMode::FireAndForget => {
                // The commit is sent without waiting: the next user of the connection is served after it.
                let _ = client.batch_execute("commit").now_or_never();
                guard.release();
                Ok(output)
            }
            Ok(output) => {
                let unopened = opening.as_deref().map(|opening| LazyTransaction { opening, tenants: &tenants });
                deferred::commit(client, prepared, unopened, deferred).await?;
                guard.release();
                Ok(output)
            }
            Err(error) => {
                if client.batch_execute("rollback").await.is_ok() {
                    guard.release();
                }
                Err(Failure { error, again: failed.is_some_and(|state| is_conflict(&state)) })
            }
        }
    }

    /// Begins the transaction and sends the prefetched statements with it. Returns the database time and, if the
    /// operation reads it, the version of the triggers: an event costs no round trip if no trigger listens.
    async fn begin<O: Operation>(
        &self,
        tx: &mut PostgresTx<'_>,
        operation: &O,
        tenants: &str,
        ending: CommitMode,
    ) -> Result<(Time, Option<i64>), Failure> {
        let client = tx.client;
        let failed = |error: tokio_postgres::Error| Failure::of(&error, "begin");
        if !self.prepared {
            let text = format!("{BEGIN}{}", begin_columns::<O>(&format!("'{tenants}'")));
            let rows = client.simple_query(&text).await.map_err(failed)?;
            return self.database_now(number(&rows, 0), number(&rows, 1));
        }
        // Everything is prepared before anything is sent, so that the order of the requests is fixed.
        let question = format!("{TIME}{}", begin_columns::<O>("$1"));
        let question = client.prepare_cached(&question).await.map_err(failed)?;
        let mut asked = Vec::new();
        for Prefetch { sql, columns, params } in operation.prefetch() {
            let first = DeferredStatement::of(sql.postgres, typed(&columns, &params));
            let first = first.map_err(|error| Failure { error, again: false })?;
            asked.push((first.prepare(client).await?, first));
        }
        let database_now = async {
            let row = client.query_one(&question, &[&tenants]).await.map_err(failed)?;
            let number = |place: usize| row.get::<_, Option<&str>>(place).and_then(|text| text.parse().ok());
            self.database_now(number(0), number(1))
        };
        let reads = join_all(asked.iter().map(|(statement, first)| first.query(client, statement)));
        let begin = if ending == CommitMode::FireAndForget { BEGIN_READING } else { BEGIN_IN_SESSION };
        let (begun, database_now, read) = tokio::join!(client.batch_execute(begin), database_now, reads);
        begun.map_err(failed)?;
        let database_now = database_now?;
        for ((_, first), read) in asked.into_iter().zip(read) {
            tx.prefetched.push((first, read.map_err(failed)?.into_iter().map(Row::Postgres).collect()));
        }
        Ok(database_now)
    }

    /// Records the observed time.
    fn database_now(&self, now: Option<i64>, trigger_version: Option<i64>) -> Result<(Time, Option<i64>), Failure> {
        let now = now.map(Time::from_micros).ok_or_else(no_time)?;
        self.db_clock.observe(now);
        Ok((now, trigger_version))
    }

    fn begin_text(&self) -> &'static str {
        if self.prepared { BEGIN_IN_SESSION } else { BEGIN }
    }

    /// The estimated database time. Asks the database if the last observation is too old.
    async fn time(&self, client: &PooledConnection) -> Result<Time, Failure> {
        if let Some(now) = self.db_clock.now() {
            return Ok(now);
        }
        let rows = client.simple_query(TIME).await.map_err(|error| Failure::of(&error, "time"))?;
        self.database_now(number(&rows, 0), None)?;
        self.db_clock.now().ok_or_else(no_time)
    }

    /// Vacuums, analyzes and, if the role may, checkpoints. Measurements start with it.
    pub(crate) async fn vacuum(&self) -> Result<(), StoreError> {
        let client = self.pool.get().await.map_err(|error| pool_error(error).error)?;
        client.batch_execute("vacuum (analyze)").await.map_err(|error| Failure::of(&error, "vacuum").error)?;
        match client.batch_execute("checkpoint").await {
            Err(error) if error.code() != Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
                Err(Failure::of(&error, "checkpoint").error)
            }
            _ => Ok(()),
        }
    }

    /// Reads a setting, outside of any transaction.
    pub(crate) async fn show(&self, setting: &str) -> Result<String, StoreError> {
        let client = self.pool.get().await.map_err(|error| pool_error(error).error)?;
        let rows =
            client.simple_query(&format!("show {setting}")).await.map_err(|error| Failure::of(&error, "show").error)?;
        Ok(first_text(&rows).unwrap_or_default())
    }
}

/// How a transaction ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CommitMode {
    /// The result is returned after the commit.
    Durable,
    /// A read loses nothing, so the commit is not awaited.
    FireAndForget,
}

/// An operation that is built when it is first needed.
struct Late<O, F> {
    made: Option<O>,
    make: Option<F>,
}

impl<O, F: FnOnce() -> O> Late<O, F> {
    fn made(&mut self) -> &O {
        let make = &mut self.make;
        self.made.get_or_insert_with(|| make.take().expect("made once")())
    }
}

/// Closes the connection instead of returning it to the pool while a transaction may be open on it.
struct Guard {
    client: Option<PooledConnection>,
}

impl Guard {
    fn release(&mut self) {
        drop(self.client.take());
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            drop(PooledConnection::take(client));
        }
    }
}

pub(super) fn first_text(messages: &[SimpleQueryMessage]) -> Option<String> {
    messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    })
}

fn number(messages: &[SimpleQueryMessage], column: usize) -> Option<i64> {
    messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.try_get(column).ok().flatten()?.parse().ok(),
        _ => None,
    })
}

fn no_time() -> Failure {
    Failure { error: StoreError::unexpected("the database returned no time"), again: false }
}

pub(super) struct PostgresTx<'a> {
    client: &'a PooledConnection,
    db_clock: &'a DbClock,
    prepared: bool,
    failed: Option<SqlState>,
    /// Prefetched statements and their rows.
    prefetched: Vec<(DeferredStatement, Vec<Row>)>,
    /// The statements that begin the transaction, until the first statement runs.
    opening: Option<String>,
    /// Statements that are sent with the commit.
    deferred: Vec<DeferredStatement>,
}

impl PostgresTx<'_> {
    async fn open(&mut self) -> Result<(), StoreError> {
        let Some(opening) = self.opening.take() else { return Ok(()) };
        self.client.batch_execute(&opening).await.map_err(|error| self.fail(error, &opening))
    }

    pub(super) async fn query(
        &mut self,
        text: &str,
        columns: &[Column<'_>],
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        self.open().await?;
        if let Some(rows) = self.prefetched(text, columns, params) {
            return Ok(rows);
        }
        let rows = if self.prepared {
            let statement = self.client.prepare_cached(text).await;
            match statement {
                Ok(statement) => self.client.query(&statement, &values(columns, params)).await,
                Err(error) => Err(error),
            }
        } else {
            self.client.query_typed(text, &typed(columns, params)).await
        };
        match rows {
            Ok(rows) => Ok(rows.into_iter().map(Row::Postgres).collect()),
            Err(error) => Err(self.fail(error, text)),
        }
    }

    /// The statement is the transaction, so a lost connection leaves its outcome unknown.
    pub(super) async fn query_as_transaction(
        &mut self,
        text: &str,
        columns: &[Column<'_>],
        params: &[Param<'_>],
        tenants: &str,
    ) -> Result<Vec<Row>, StoreError> {
        if !self.prepared || self.opening.is_none() {
            return Err(StoreError::unexpected("a statement is not alone in its transaction"));
        }
        let statement = self.client.prepare_cached(text).await.map_err(|error| self.fail(error, text))?;
        let values = values(columns, params);
        let (set, rows) = tokio::join!(self.client.set_tenants(tenants), self.client.query(&statement, &values));
        let rows = set.and(rows).map_err(|error| {
            self.failed = error.code().cloned();
            Failure::of_commit(&error).error
        })?;
        let rows: Vec<Row> = rows.into_iter().map(Row::Postgres).collect();
        if let Some(row) = rows.first() {
            self.db_clock.observe(row.time("now")?);
        }
        Ok(rows)
    }

    /// The rows of a prefetched statement, if its text and parameters are those of this query.
    fn prefetched(&mut self, text: &str, columns: &[Column<'_>], params: &[Param<'_>]) -> Option<Vec<Row>> {
        let is_asked = |asked: &DeferredStatement| asked.is_of(text) && asked.has(&typed(columns, params));
        let place = self.prefetched.iter().position(|(asked, _)| is_asked(asked))?;
        Some(self.prefetched.swap_remove(place).1)
    }

    pub(super) async fn execute(
        &mut self,
        text: &str,
        columns: &[Column<'_>],
        params: &[Param<'_>],
    ) -> Result<u64, StoreError> {
        self.open().await?;
        let changed = if self.prepared {
            match self.client.prepare_cached(text).await {
                Ok(statement) => self.client.execute(&statement, &values(columns, params)).await,
                Err(error) => Err(error),
            }
        } else {
            self.client.execute_typed(text, &typed(columns, params)).await
        };
        changed.map_err(|error| self.fail(error, text))
    }

    pub(super) async fn defer(
        &mut self,
        text: &'static str,
        columns: &[Column<'_>],
        params: &[Param<'_>],
    ) -> Result<(), StoreError> {
        self.deferred.push(DeferredStatement::of(text, typed(columns, params))?);
        Ok(())
    }

    pub(super) async fn batch(&mut self, text: &str) -> Result<(), StoreError> {
        self.open().await?;
        self.client.batch_execute(text).await.map_err(|error| self.fail(error, text))
    }

    pub(super) async fn prepare(&mut self, text: &str) -> Result<(), StoreError> {
        self.client.prepare(text).await.map(|_| ()).map_err(|error| self.fail(error, text))
    }

    fn fail(&mut self, error: tokio_postgres::Error, text: &str) -> StoreError {
        self.failed = error.code().cloned();
        let start: String = text.split_whitespace().take(6).collect::<Vec<_>>().join(" ");
        postgres_error(&error, &start)
    }
}

fn values<'v>(columns: &'v [Column<'_>], params: &'v [Param<'_>]) -> Vec<&'v (dyn ToSql + Sync)> {
    let columns = columns.iter().map(|column| column as &(dyn ToSql + Sync));
    columns.chain(params.iter().map(|param| param as &(dyn ToSql + Sync))).collect()
}

fn typed<'v>(columns: &'v [Column<'_>], params: &'v [Param<'_>]) -> Vec<(&'v (dyn ToSql + Sync), Type)> {
    let columns = columns.iter().map(|column| (column as &(dyn ToSql + Sync), column.postgres_type()));
    columns.chain(params.iter().map(|param| (param as &(dyn ToSql + Sync), param.postgres_type()))).collect()
}
