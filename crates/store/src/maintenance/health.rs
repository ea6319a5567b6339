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
