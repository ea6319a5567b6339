//! One transaction on either database: the only place, with its two files, that names a driver.
//!
//! Operations are `async fn`s over `Tx`. On PostgreSQL they await the network. On SQLite they run on the writer's own
//! thread and never wait, so a single poll completes them.

mod copy;
mod failure;
mod forms;
mod heard;
mod later;
mod listen;
mod opening;
mod postgres;
mod sqlite;
mod tls;
mod value;

use domain::{TenantId, Time};
use uuid::Uuid;

use crate::error::StoreError;
use crate::wall;
pub(crate) use copy::copy_sqlite;
pub use opening::BEGIN;
pub(crate) use postgres::Postgres;
pub(crate) use sqlite::Sqlite;
pub use value::{Column, Param, Row};

/// The text of one statement per dialect, with parameters `$1`, `$2`, ….
///
/// On SQLite a statement may be several, run one after the other with the same parameters; one of them may give rows.
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

    /// For what only SQLite is asked.
    pub const fn sqlite(sqlite: &'static [&'static str]) -> Self {
        Self { sqlite, postgres: "select 1" }
    }

    /// For what only PostgreSQL is asked.
    pub const fn postgres(postgres: &'static str) -> Self {
        Self { sqlite: &["select 1"], postgres }
    }
}

/// One unit of work: its data in, its answer out, all in one transaction.
///
/// It may run more than once (a deadlock on PostgreSQL is retried, and on SQLite whoever shares a commit with one that fails),
/// so it takes `&self` and acts on the database only, and on what may be forgotten.
pub trait Operation: Send + Sync + 'static {
    /// Whether it writes events: then the transaction learns as it opens whether triggers have changed.
    const WATCHES_TRIGGERS: bool = false;
    /// Whether on PostgreSQL nobody waits for its transaction to open: that travels with the first thing done in it, be it
    /// the commit. Its time is then what the database told before, and what has passed since (`heard.rs`). What it leaves for
    /// later sees nothing of each other.
    const OPENS_UNHEARD: bool = false;
    /// How often it is tried on PostgreSQL before others that are in its way have it fail.
    const TRIES: usize = 5;
    type Output: Send + 'static;

    /// The one tenant whose rows it touches, where there is one: PostgreSQL then shows it no others (`wall.rs`).
    fn tenant(&self) -> Option<TenantId> {
        None
    }

    /// The same for a commit that several tenants share. Without any it reaches everyone's rows: that is for maintenance.
    fn tenants(&self) -> Vec<TenantId> {
        self.tenant().into_iter().collect()
    }

    fn run(&self, tx: &mut Tx<'_>) -> impl Future<Output = Result<Self::Output, StoreError>> + Send;

    /// What it will read first, where that is known beforehand: on PostgreSQL it travels with the opening of the
    /// transaction and costs no round trip of its own. `run` asks for it as for anything else, or for something else.
    fn reads_first(&self) -> Vec<First<'_>> {
        Vec::new()
    }
}

/// A statement that is asked as the transaction opens.
pub struct First<'a> {
    pub sql: Sql,
    pub columns: Vec<Column<'a>>,
    pub params: Vec<Param<'a>>,
}

/// An open transaction.
pub struct Tx<'a> {
    driver: Driver<'a>,
    now: Time,
    /// The clock of the triggers, when it was read as the transaction opened.
    trigger_version: Option<i64>,
    /// Whose rows PostgreSQL shows, as `wall::around` says it; everyone's, when `None`.
    wall: Option<String>,
}

const TRIGGER_VERSION: Sql = Sql::both(&["select version from trigger_clock where id = 1"]);

enum Driver<'a> {
    Sqlite(sqlite::SqliteTx<'a>),
    Postgres(postgres::PostgresTx<'a>),
}

impl Tx<'_> {
    /// The database's time at the start of this transaction, or a little before (`Operation::OPENS_UNHEARD`).
    pub fn now(&self) -> Time {
        self.now
    }

    pub fn is_postgres(&self) -> bool {
        matches!(self.driver, Driver::Postgres(_))
    }

    /// The clock that every change of a trigger moves.
    pub(crate) async fn trigger_version(&mut self) -> Result<i64, StoreError> {
        if let Some(version) = self.trigger_version {
            return Ok(version);
        }
        let row = self.query_opt(&TRIGGER_VERSION, &[]).await?;
        let version = row.ok_or_else(|| StoreError::unexpected("the triggers have no clock"))?.int(0)?;
        self.trigger_version = Some(version);
        Ok(version)
    }

    /// Runs a statement and gives its rows.
    pub async fn query(&mut self, sql: &Sql, params: &[Param<'_>]) -> Result<Vec<Row>, StoreError> {
        match &mut self.driver {
            Driver::Sqlite(tx) => tx.query(sql.sqlite, params),
            Driver::Postgres(tx) => tx.query(sql.postgres, &[], params).await,
        }
    }

    /// The same over every tenant's rows: for what a node remembers of all of them.
    pub(crate) async fn query_everyones(&mut self, sql: &Sql, params: &[Param<'_>]) -> Result<Vec<Row>, StoreError> {
        let Some(wall) = self.wall.clone() else { return self.query(sql, params).await };
        self.query_built(wall::OPEN, &[]).await?;
        let rows = self.query(sql, params).await?;
        self.query_built(wall::AROUND, &[Param::Text(&wall)]).await?;
        Ok(rows)
    }

    /// Runs a statement that was put together for this call, the same on both databases.
    pub async fn query_built(&mut self, text: &str, params: &[Param<'_>]) -> Result<Vec<Row>, StoreError> {
        match &mut self.driver {
            Driver::Sqlite(tx) => tx.query(&[text], params),
            Driver::Postgres(tx) => tx.query(text, &[], params).await,
        }
    }

    /// The first row, if there is one.
    pub async fn query_opt(&mut self, sql: &Sql, params: &[Param<'_>]) -> Result<Option<Row>, StoreError> {
        Ok(self.query(sql, params).await?.into_iter().next())
    }

    /// Runs a statement and tells how many rows it changed.
    pub async fn execute(&mut self, sql: &Sql, params: &[Param<'_>]) -> Result<u64, StoreError> {
        match &mut self.driver {
            Driver::Sqlite(tx) => tx.execute(sql.sqlite, params),
            Driver::Postgres(tx) => tx.execute(sql.postgres, &[], params).await,
        }
    }

    /// Runs a statement for each row of `columns` and gives all their rows, in no particular order.
    ///
    /// Columns are the first parameters, `params` follow. PostgreSQL gets one statement over arrays (`unnest($1, …)`),
    /// SQLite the same prepared statement once per row.
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

    /// Runs a statement over the ids, `$1`, and gives its rows: on SQLite too it is one statement, over
    /// `rarray($1)`.
    pub async fn query_listed(
        &mut self,
        sql: &Sql,
        ids: &[Uuid],
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        match &mut self.driver {
            Driver::Sqlite(tx) => tx.query_listed(sql.sqlite, ids, params),
            Driver::Postgres(tx) => tx.query(sql.postgres, &[Column::uuids(ids.iter().copied())], params).await,
        }
    }

    /// Finds rows, among the ids, `$1`, if there are any, changes them, and gives what was found. On SQLite the first text finds
    /// them, with their row ids as the last column, and the others change those `in (select value from rarray($n))`, the
    /// parameter after the last.
    pub async fn query_found(
        &mut self,
        sql: &Sql,
        ids: Option<&[Uuid]>,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        match &mut self.driver {
            Driver::Sqlite(tx) => tx.query_found(sql.sqlite, ids, params),
            Driver::Postgres(tx) => {
                let ids: Vec<Column<'_>> = ids.map(|ids| Column::uuids(ids.iter().copied())).into_iter().collect();
                tx.query(sql.postgres, &ids, params).await
            }
        }
    }

    /// Changes rows of SQLite that are known from before: by each text those `in (select value from rarray($n))`, the parameter
    /// after the last. Gives whether each text changed each of them; if not, nothing was done: the operation runs again to hear
    /// that.
    pub async fn change_known(&mut self, sql: &Sql, rows: Vec<i64>, params: &[Param<'_>]) -> Result<bool, StoreError> {
        match &mut self.driver {
            Driver::Sqlite(tx) => tx.change_known(sql.sqlite, rows, params),
            Driver::Postgres(_) => Err(StoreError::unexpected("rows of PostgreSQL are not known by a number")),
        }
    }

    /// Runs a statement of PostgreSQL that is the whole transaction of an operation that opens unheard, and gives its rows: one
    /// round trip for all of it. Its last parameter says whose rows it is about, for which it puts up the wall itself; the
    /// last column of its rows is the database's time.
    pub async fn query_alone(
        &mut self,
        sql: &Sql,
        columns: &[Column<'_>],
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        match &mut self.driver {
            Driver::Sqlite(_) => Err(StoreError::unexpected("SQLite has no wall")),
            Driver::Postgres(tx) => {
                let wall = self.wall.as_deref().unwrap_or_default();
                let params: Vec<Param<'_>> = params.iter().copied().chain([Param::Text(wall)]).collect();
                tx.query_alone(sql.postgres, columns, &params).await
            }
        }
    }

    /// Runs a statement for each row of `columns`, at the latest with the commit: on PostgreSQL what is left for later
    /// travels with it in one round trip. For statements that nothing in the operation looks at again.
    pub async fn execute_later(
        &mut self,
        sql: &Sql,
        columns: &[Column<'_>],
        params: &[Param<'_>],
    ) -> Result<(), StoreError> {
        if columns.first().is_some_and(Column::is_empty) {
            return Ok(());
        }
        match &mut self.driver {
            Driver::Sqlite(tx) if columns.is_empty() => tx.execute(sql.sqlite, params).map(|_| ()),
            Driver::Sqlite(tx) => tx.execute_each(sql.sqlite, columns, params).map(|_| ()),
            Driver::Postgres(tx) => tx.execute_later(sql.postgres, columns, params).await,
        }
    }

    /// Runs SQL without parameters, several statements if need be.
    pub async fn batch(&mut self, text: &str) -> Result<(), StoreError> {
        match &mut self.driver {
            Driver::Sqlite(tx) => tx.batch(text),
            Driver::Postgres(tx) => tx.batch(text).await,
        }
    }

    /// Asks the database to accept the statement without running it.
    pub async fn prepare(&mut self, sql: &Sql) -> Result<(), StoreError> {
        match &mut self.driver {
            Driver::Sqlite(tx) => tx.prepare(sql.sqlite),
            Driver::Postgres(tx) => tx.prepare(sql.postgres).await,
        }
    }

    /// Holds a name together with others that hold it so: whoever asks for it with `lock` waits for all of them.
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

    /// Holds a name until the end of the transaction, unless another holds it. Gives whether it does.
    pub(crate) async fn try_lock(&mut self, name: &str) -> Result<bool, StoreError> {
        match &mut self.driver {
            Driver::Sqlite(_) => Ok(true),
            Driver::Postgres(tx) => {
                let sql = "select pg_try_advisory_xact_lock(hashtextextended($1, 0))";
                let rows = tx.query(sql, &[], &[Param::Text(name)]).await?;
                rows.first().ok_or_else(|| StoreError::unexpected("a lock gave no answer"))?.bool(0)
            }
        }
    }

    /// Lets PostgreSQL weigh all plans from here on: for a statement that reads tables whole.
    pub(crate) async fn read_whole(&mut self) -> Result<(), StoreError> {
        match &mut self.driver {
            Driver::Sqlite(_) => Ok(()),
            Driver::Postgres(tx) => tx.batch(opening::WEIGH).await,
        }
    }

    /// Holds names until the end of the transaction: whoever asks for one of them waits.
    ///
    /// SQLite has one writer, which holds everything already.
    pub async fn lock(&mut self, names: &[&str]) -> Result<(), StoreError> {
        match &mut self.driver {
            Driver::Sqlite(_) => Ok(()),
            Driver::Postgres(_) if names.is_empty() => Ok(()),
            // In order, so that two transactions never wait for each other in a circle.
            Driver::Postgres(tx) => {
                let sql = "select count(pg_advisory_xact_lock(hashtextextended(name, 0))) \
                           from (select name from unnest($1::text[]) name order by 1) names";
                tx.query(sql, &[Column::texts(names.iter().copied())], &[]).await.map(|_| ())
            }
        }
    }
}
