//! Transactions on either database. Only this module names a database driver.
//!
//! Operations are `async fn`s over `Tx`. On PostgreSQL they await the network. On SQLite they run on the writer's
//! thread and never wait, so a single poll completes them.

mod copy;
mod db_clock;
mod deferred;
mod failure;
mod listen;
mod multi_row;
mod opening;
mod pooler;
mod postgres;
mod row;
mod session;
mod sqlite;
mod tls;
mod value;

use domain::{TenantId, Time};
use uuid::Uuid;

use crate::db::row_level_security;
use crate::error::StoreError;
pub(crate) use copy::copy_sqlite;
pub use opening::BEGIN;
pub use pooler::Pooler;
pub(crate) use postgres::Postgres;
pub use row::{ColumnRef, Row};
pub(crate) use sqlite::Sqlite;
pub use value::{Column, Param};

/// The text of one statement per dialect, with parameters `$1`, `$2`, ….
///
/// On SQLite a statement may be a sequence that runs with the same parameters. At most one of them returns rows.
#[derive(Clone, Copy, Debug)]
pub struct Sql {
    pub sqlite: &'static [&'static str],
    pub postgres: &'static str,
}

impl Sql {
    pub const fn both(text: &'static [&'static str; 1]) -> Self {
        Self { sqlite: text, postgres: text[0] }
    }

    pub const fn new(sqlite: &'static [&'static str], postgres: &'static str) -> Self {
        Self { sqlite, postgres }
    }

    /// A statement that runs on SQLite only.
    pub const fn sqlite(sqlite: &'static [&'static str]) -> Self {
        Self { sqlite, postgres: "select 1" }
    }

    /// A statement that runs on PostgreSQL only.
    pub const fn postgres(postgres: &'static str) -> Self {
        Self { sqlite: &["select 1"], postgres }
    }
}

/// A unit of work: its input as fields, its output as the return value, in one transaction.
///
/// An operation may run more than once: PostgreSQL retries after a deadlock, and SQLite repeats all operations of a
/// shared commit if one of them fails. Therefore it takes `&self` and changes nothing but the database and caches.
pub trait Operation: Send + Sync + 'static {
    /// True if the operation writes events. The begin of its transaction then also reads the version of the triggers.
    const READS_TRIGGER_VERSION: bool = false;
    /// True if the transaction begins on PostgreSQL with its first statement, or with the commit if all statements are
    /// deferred. The time of the transaction is then an estimate (`db_clock.rs`). Deferred statements must not depend
    /// on each other.
    const LAZY_BEGIN: bool = false;
    /// Maximum number of attempts on PostgreSQL after conflicts with other transactions.
    const TRIES: usize = 5;
    type Output: Send + 'static;

    /// The tenant whose rows the operation touches, if it is one. PostgreSQL then hides the rows of other tenants
    /// (`row_level_security.rs`).
    fn tenant(&self) -> Option<TenantId> {
        None
    }

    /// The tenants of a commit that several tenants share. Without any, the operation sees all rows; only maintenance
    /// does that.
    fn tenants(&self) -> Vec<TenantId> {
        self.tenant().into_iter().collect()
    }

    fn run(&self, tx: &mut Tx<'_>) -> impl Future<Output = Result<Self::Output, StoreError>> + Send;

    /// Statements whose results the operation will ask for first. On PostgreSQL they are sent with the begin and cost
    /// no round trip. `run` queries as it would without them; a query with other text or other parameters ignores the prefetched rows.
    fn prefetch(&self) -> Vec<Prefetch<'_>> {
        Vec::new()
    }
}

/// A statement that is sent with the begin of the transaction.
pub struct Prefetch<'a> {
    pub sql: Sql,
    pub columns: Vec<Column<'a>>,
    pub params: Vec<Param<'a>>,
}

/// An open transaction.
pub struct Tx<'a> {
    driver: Driver<'a>,
    now: Time,
    /// The version of the triggers, if the begin read it.
    trigger_version: Option<i64>,
    /// The tenants whose rows PostgreSQL shows, as `tenant_setting` writes them; empty for all tenants.
    tenants: String,
}

const TRIGGER_VERSION: Sql = Sql::both(&["select version from trigger_clock where id = 1"]);

enum Driver<'a> {
    Sqlite(sqlite::SqliteTx<'a>),
    Postgres(postgres::PostgresTx<'a>),
}

impl Tx<'_> {
    /// The time of the database at the start of this transaction, or slightly earlier (`Operation::LAZY_BEGIN`).
    pub fn now(&self) -> Time {
        self.now
    }

    pub fn is_postgres(&self) -> bool {
        matches!(self.driver, Driver::Postgres(_))
    }

    /// The version of the triggers. Every change of a trigger increments it.
    pub(crate) async fn trigger_version(&mut self) -> Result<i64, StoreError> {
        if let Some(version) = self.trigger_version {
            return Ok(version);
        }
        let row = self.query_opt(&TRIGGER_VERSION, &[]).await?;
        let version = row.ok_or_else(|| StoreError::unexpected("the triggers have no clock"))?.int("version")?;
        self.trigger_version = Some(version);
        Ok(version)
    }

    /// Runs a statement and returns its rows.
    pub async fn query(&mut self, sql: &Sql, params: &[Param<'_>]) -> Result<Vec<Row>, StoreError> {
        match &mut self.driver {
            Driver::Sqlite(tx) => tx.query(sql.sqlite, params),
            Driver::Postgres(tx) => tx.query(sql.postgres, &[], params).await,
        }
    }

    /// Runs a query over the rows of all tenants, for caches that all tenants share.
    pub(crate) async fn query_all_tenants(&mut self, sql: &Sql, params: &[Param<'_>]) -> Result<Vec<Row>, StoreError> {
        let tenants = self.tenants.clone();
        if tenants.is_empty() {
            return self.query(sql, params).await;
        }
        self.query_built(row_level_security::RESET, &[]).await?;
        let rows = self.query(sql, params).await?;
        self.query_built(row_level_security::SET_TENANT, &[Param::Text(&tenants)]).await?;
        Ok(rows)
    }

    /// Runs a statement that was built for this call. Its text is the same on both databases.
    pub async fn query_built(&mut self, text: &str, params: &[Param<'_>]) -> Result<Vec<Row>, StoreError> {
        match &mut self.driver {
            Driver::Sqlite(tx) => tx.query(&[text], params),
            Driver::Postgres(tx) => tx.query(text, &[], params).await,
        }
    }

    /// Runs a statement and returns its first row, if any.
    pub async fn query_opt(&mut self, sql: &Sql, params: &[Param<'_>]) -> Result<Option<Row>, StoreError> {
        Ok(self.query(sql, params).await?.into_iter().next())
    }

    /// Runs a statement and returns the number of changed rows.
    pub async fn execute(&mut self, sql: &Sql, params: &[Param<'_>]) -> Result<u64, StoreError> {
        match &mut self.driver {
            Driver::Sqlite(tx) => tx.execute(sql.sqlite, params),
            Driver::Postgres(tx) => tx.execute(sql.postgres, &[], params).await,
        }
    }

    /// Runs a statement for each row of `columns` and returns all rows, in no particular order.
    ///
    /// Columns are the first parameters, `params` follow. PostgreSQL runs one statement over arrays (`unnest($1, …)`).
    /// SQLite runs the same prepared statement once per row.
    pub async fn query_each(
        &mut self,
        sql: &Sql,
        columns: &[Column<'_>],
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        if columns.first().is_none_or(Column::is_empty) {
            return Ok(Vec::new());
        }
        match &mut self.driver {
            Driver::Sqlite(tx) => tx.query_each(sql.sqlite, columns, params),
            Driver::Postgres(tx) => tx.query(sql.postgres, columns, params).await,
        }
    }

    /// Runs a statement that was built for this call over columns. PostgreSQL only.
    pub async fn query_each_built(&mut self, text: &str, columns: &[Column<'_>]) -> Result<Vec<Row>, StoreError> {
        match &mut self.driver {
            Driver::Sqlite(_) => Err(StoreError::unexpected("a statement over arrays runs on PostgreSQL only")),
            Driver::Postgres(tx) => tx.query(text, columns, &[]).await,
        }
    }

    pub async fn execute_each(
        &mut self,
        sql: &Sql,
        columns: &[Column<'_>],
        params: &[Param<'_>],
    ) -> Result<u64, StoreError> {
        if columns.first().is_none_or(Column::is_empty) {
            return Ok(0);
        }
        match &mut self.driver {
            Driver::Sqlite(tx) => tx.execute_each(sql.sqlite, columns, params),
            Driver::Postgres(tx) => tx.execute(sql.postgres, columns, params).await,
        }
    }

    /// Runs one statement over the ids, `$1`. SQLite reads them with `rarray($1)`.
    pub async fn query_by_ids(
        &mut self,
        sql: &Sql,
        ids: &[Uuid],
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        match &mut self.driver {
            Driver::Sqlite(tx) => tx.query_by_ids(sql.sqlite, ids, params),
            Driver::Postgres(tx) => tx.query(sql.postgres, &[Column::uuids(ids.iter().copied())], params).await,
        }
    }

    /// Finds rows, changes them, and returns the rows found. With `ids`, `$1` lists the ids to look among.
    ///
    /// On SQLite the first text selects the rows, with the row id as the last column. Each other text changes the rows
    /// `in (select value from rarray($n))`, where `$n` follows the last parameter. With `max_bytes`, the first text is not
    /// read further after rows of this size. PostgreSQL ignores `max_bytes`: its statement must contain the limit.
    pub async fn change_and_return(
        &mut self,
        sql: &Sql,
        ids: Option<&[Uuid]>,
        params: &[Param<'_>],
        max_bytes: Option<usize>,
    ) -> Result<Vec<Row>, StoreError> {
        match &mut self.driver {
            Driver::Sqlite(tx) => tx.change_and_return(sql.sqlite, ids, params, max_bytes),
            Driver::Postgres(tx) => {
                let ids: Vec<Column<'_>> = ids.map(|ids| Column::uuids(ids.iter().copied())).into_iter().collect();
                tx.query(sql.postgres, &ids, params).await
            }
        }
    }

    /// Changes rows of SQLite by their row ids: each text changes the rows `in (select value from rarray($n))`, where
    /// `$n` follows the last parameter. Returns false, and changes nothing, if a text did not change every row; the
    /// operation then runs a second time to learn that.
    pub async fn change_by_row_id(
        &mut self,
        sql: &Sql,
        rows: Vec<i64>,
        params: &[Param<'_>],
    ) -> Result<bool, StoreError> {
        match &mut self.driver {
            Driver::Sqlite(tx) => tx.change_by_row_id(sql.sqlite, rows, params),
            Driver::Postgres(_) => Err(StoreError::unexpected("rows of PostgreSQL are not known by a number")),
        }
    }

    /// Runs a PostgreSQL statement that is the whole transaction of an operation with `LAZY_BEGIN`, in one round trip. Its rows
    /// must have `now()` as the column `now`.
    pub async fn query_as_transaction(
        &mut self,
        sql: &Sql,
        columns: &[Column<'_>],
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        match &mut self.driver {
            Driver::Sqlite(_) => Err(StoreError::unexpected("SQLite has no lazy transactions")),
            Driver::Postgres(tx) => tx.query_as_transaction(sql.postgres, columns, params, &self.tenants).await,
        }
    }

    /// Runs a statement for each row of `columns` no later than the commit. PostgreSQL receives it with the commit, in
    /// one round trip. The rest of the operation must not depend on its effect.
    pub async fn defer(&mut self, sql: &Sql, columns: &[Column<'_>], params: &[Param<'_>]) -> Result<(), StoreError> {
        if columns.first().is_some_and(Column::is_empty) {
            return Ok(());
        }
        match &mut self.driver {
            Driver::Sqlite(tx) if columns.is_empty() => tx.execute(sql.sqlite, params).map(|_| ()),
            Driver::Sqlite(tx) => tx.execute_each(sql.sqlite, columns, params).map(|_| ()),
            Driver::Postgres(tx) => tx.defer(sql.postgres, columns, params).await,
        }
    }

    /// Runs SQL without parameters, possibly several statements.
    pub async fn batch(&mut self, text: &str) -> Result<(), StoreError> {
        match &mut self.driver {
            Driver::Sqlite(tx) => tx.batch(text),
            Driver::Postgres(tx) => tx.batch(text).await,
        }
    }

    /// Prepares the statement without running it.
    pub async fn prepare(&mut self, sql: &Sql) -> Result<(), StoreError> {
        match &mut self.driver {
            Driver::Sqlite(tx) => tx.prepare(sql.sqlite),
            Driver::Postgres(tx) => tx.prepare(sql.postgres).await,
        }
    }

    /// Acquires a shared lock on a name until the end of the transaction. `lock` waits for it.
    pub async fn lock_shared(&mut self, name: &str) -> Result<(), StoreError> {
        match &mut self.driver {
            Driver::Sqlite(_) => Ok(()),
            Driver::Postgres(tx) => {
                let sql = "select count(pg_advisory_xact_lock_shared(hashtextextended(name, 0))) \
                           from unnest($1::text[]) name";
                tx.query(sql, &[Column::texts([name])], &[]).await.map(|_| ())
            }
        }
    }

    /// Acquires an exclusive lock on a name until the end of the transaction. Returns false if another transaction
    /// holds it.
    pub(crate) async fn try_lock(&mut self, name: &str) -> Result<bool, StoreError> {
        match &mut self.driver {
            Driver::Sqlite(_) => Ok(true),
            Driver::Postgres(tx) => {
                let sql = "select pg_try_advisory_xact_lock(hashtextextended($1, 0)) as acquired";
                let rows = tx.query(sql, &[], &[Param::Text(name)]).await?;
                rows.first().ok_or_else(|| StoreError::unexpected("a lock gave no answer"))?.bool("acquired")
            }
        }
    }

    /// Allows PostgreSQL every kind of plan for the rest of the transaction, for statements that scan whole tables.
    pub(crate) async fn allow_all_plans(&mut self) -> Result<(), StoreError> {
        match &mut self.driver {
            Driver::Sqlite(_) => Ok(()),
            Driver::Postgres(tx) => tx.batch(opening::ALLOW_ALL_PLANS).await,
        }
    }

    /// Acquires exclusive locks on names until the end of the transaction.
    ///
    /// SQLite has one writer, so there is nothing to lock.
    pub async fn lock(&mut self, names: &[&str]) -> Result<(), StoreError> {
        match &mut self.driver {
            Driver::Sqlite(_) => Ok(()),
            Driver::Postgres(_) if names.is_empty() => Ok(()),
            // Sorted, so that two transactions cannot deadlock.
            Driver::Postgres(tx) => {
                let sql = "select count(pg_advisory_xact_lock(hashtextextended(name, 0))) \
                           from (select name from unnest($1::text[]) name order by 1) names";
                tx.query(sql, &[Column::texts(names.iter().copied())], &[]).await.map(|_| ())
            }
        }
    }
}
