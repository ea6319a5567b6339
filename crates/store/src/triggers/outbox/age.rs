//! Measures the lag of the outbox dispatchers.

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

impl Store {
    /// Returns how long the oldest due row has been due, in milliseconds. Returns 0 if no row is due.
    pub async fn outbox_age_ms(&self) -> Result<i64, StoreError> {
        self.read(ReadOutboxAge).await
    }
}

struct ReadOutboxAge;

const OLDEST: Sql = Sql::both(&["select due_at from outbox where due_at <= $1 order by due_at limit 1"]);

impl Operation for ReadOutboxAge {
    type Output = i64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<i64, StoreError> {
        let now = tx.now();
        let oldest = tx.query_opt(&OLDEST, &[Param::Time(now)]).await?.map(|row| row.time("due_at")).transpose()?;
        Ok(oldest.map_or(0, |oldest| now.ms_since(oldest).max(0)))
    }
}
