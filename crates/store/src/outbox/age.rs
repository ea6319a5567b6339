//! How far behind the dispatchers are.

use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

impl Store {
    /// Milliseconds since the oldest row that could be started has been due; 0 when nothing waits.
    pub async fn outbox_age_ms(&self) -> Result<i64, StoreError> {
        self.read(Age).await
    }
}

struct Age;

const OLDEST: Sql = Sql::both(&["select due_at from outbox where due_at <= $1 order by due_at limit 1"]);

impl Operation for Age {
    type Output = i64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<i64, StoreError> {
        let now = tx.now();
        let oldest = tx.query_opt(&OLDEST, &[Param::Time(now)]).await?.map(|row| row.time(0)).transpose()?;
        Ok(oldest.map_or(0, |oldest| now.ms_since(oldest).max(0)))
    }
}
