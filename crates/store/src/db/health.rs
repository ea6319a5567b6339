//! Reads the health of a PostgreSQL server, for `windlass doctor` and the System page.

use crate::db::tx::{Operation, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

impl Store {
    /// Returns the offset of this machine's clock from the database clock in milliseconds, and the age of the oldest
    /// transaction in seconds. Both are 0 on SQLite, which has one clock and one writer.
    pub async fn clock_skew_and_oldest_transaction(&self) -> Result<(i64, i64), StoreError> {
        if !self.is_postgres() {
            return Ok((0, 0));
        }
        let (now, oldest) = self.read(ReadOldestTransaction).await?;
        Ok((self.clock().now().ms_since(now), oldest))
    }
}

struct ReadOldestTransaction;

const OLDEST: Sql = Sql::new(
    &["select 0 as age_s"],
    "select coalesce(max(extract(epoch from clock_timestamp() - xact_start)), 0)::bigint as age_s from pg_stat_activity
     where xact_start is not null and pid <> pg_backend_pid()",
);

impl Operation for ReadOldestTransaction {
    type Output = (domain::Time, i64);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(domain::Time, i64), StoreError> {
        let row = tx.query_opt(&OLDEST, &[]).await?;
        Ok((tx.now(), row.map(|row| row.int("age_s")).transpose()?.unwrap_or(0)))
    }
}

/// Vacuum horizon and size of a PostgreSQL database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PostgresHealth {
    /// Age, in transactions, of the oldest snapshot, replication slot or prepared transaction. Vacuum cannot remove
    /// rows that died since then.
    pub xmin_age: i64,
    /// Size of the database on disk.
    pub database_bytes: i64,
}

impl Store {
    /// Returns `None` on SQLite.
    pub async fn postgres_health(&self) -> Result<Option<PostgresHealth>, StoreError> {
        if !self.is_postgres() {
            return Ok(None);
        }
        self.read(ReadPostgresHealth).await.map(Some)
    }

    /// Returns the size of the server's WAL on disk; `None` on SQLite and if the role lacks the permission.
    pub async fn postgres_wal_bytes(&self) -> Option<i64> {
        if !self.is_postgres() {
            return None;
        }
        self.read(ReadWalSize).await.ok()
    }
}

struct ReadPostgresHealth;

const HEALTH: Sql = Sql::new(
    &["select 0 as xmin_age, 0 as database_bytes"],
    "select greatest(
         (select max(age(backend_xmin)) from pg_stat_activity where backend_xmin is not null and pid <> pg_backend_pid()),
         (select max(age(xmin)) from pg_replication_slots where xmin is not null),
         (select max(age(transaction)) from pg_prepared_xacts), 0)::bigint as xmin_age,
         pg_database_size(current_database())::bigint as database_bytes",
);

impl Operation for ReadPostgresHealth {
    type Output = PostgresHealth;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<PostgresHealth, StoreError> {
        let row = tx.query_opt(&HEALTH, &[]).await?;
        let row = row.ok_or_else(|| StoreError::unexpected("the health query returned no row"))?;
        Ok(PostgresHealth { xmin_age: row.int("xmin_age")?, database_bytes: row.int("database_bytes")? })
    }
}

struct ReadWalSize;

const WAL: Sql = Sql::new(&["select 0 as bytes"], "select coalesce(sum(size), 0)::bigint as bytes from pg_ls_waldir()");

impl Operation for ReadWalSize {
    type Output = i64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<i64, StoreError> {
        let row = tx.query_opt(&WAL, &[]).await?;
        row.map(|row| row.int("bytes")).transpose().map(Option::unwrap_or_default)
    }
}
