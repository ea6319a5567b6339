//! What `doctor` asks of PostgreSQL.

use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Operation, Sql, Tx};

impl Store {
    /// How far this machine's clock is from the database's, in milliseconds, and the age of the oldest transaction in
    /// seconds. Both are 0 on SQLite, where there is one clock and one writer.
    pub async fn clock_skew_and_oldest_transaction(&self) -> Result<(i64, i64), StoreError> {
        if !self.is_postgres() {
            return Ok((0, 0));
        }
        let (now, oldest) = self.read(Look).await?;
        Ok((self.clock().now().ms_since(now), oldest))
    }
}

struct Look;

const OLDEST: Sql = Sql::new(
    &["select 0"],
    "select coalesce(max(extract(epoch from clock_timestamp() - xact_start)), 0)::bigint from pg_stat_activity
     where xact_start is not null and pid <> pg_backend_pid()",
);

impl Operation for Look {
    type Output = (domain::Time, i64);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(domain::Time, i64), StoreError> {
        let row = tx.query_opt(&OLDEST, &[]).await?;
        Ok((tx.now(), row.map(|row| row.int(0)).transpose()?.unwrap_or(0)))
    }
}

/// What a PostgreSQL server carries for us and for others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PostgresBurden {
    /// How many transactions ago the oldest snapshot, slot or prepared transaction began: dead rows since then stay.
    pub xmin_age: i64,
    /// The whole database on disk.
    pub database_bytes: i64,
}

impl Store {
    /// `None` on SQLite.
    pub async fn postgres_burden(&self) -> Result<Option<PostgresBurden>, StoreError> {
        if !self.is_postgres() {
            return Ok(None);
        }
        self.read(Burden).await.map(Some)
    }

    /// The server's WAL on disk; `None` on SQLite and where this role may not know.
    pub async fn postgres_wal_bytes(&self) -> Option<i64> {
        if !self.is_postgres() {
            return None;
        }
        self.read(Wal).await.ok()
    }
}

struct Burden;

const BURDEN: Sql = Sql::new(
    &["select 0, 0"],
    "select greatest(
         (select max(age(backend_xmin)) from pg_stat_activity where backend_xmin is not null and pid <> pg_backend_pid()),
         (select max(age(xmin)) from pg_replication_slots where xmin is not null),
         (select max(age(transaction)) from pg_prepared_xacts), 0)::bigint,
         pg_database_size(current_database())::bigint",
);

impl Operation for Burden {
    type Output = PostgresBurden;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<PostgresBurden, StoreError> {
        let row = tx.query_opt(&BURDEN, &[]).await?;
        let row = row.ok_or_else(|| StoreError::unexpected("PostgreSQL told nothing of itself"))?;
        Ok(PostgresBurden { xmin_age: row.int(0)?, database_bytes: row.int(1)? })
    }
}

struct Wal;

const WAL: Sql = Sql::new(&["select 0"], "select coalesce(sum(size), 0)::bigint from pg_ls_waldir()");

impl Operation for Wal {
    type Output = i64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<i64, StoreError> {
        let row = tx.query_opt(&WAL, &[]).await?;
        row.map(|row| row.int(0)).transpose().map(Option::unwrap_or_default)
    }
}
