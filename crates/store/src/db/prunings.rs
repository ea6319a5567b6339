//! Reads the log of prunings: what was deleted, when and why. Shown on the System page.

use domain::Time;

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

/// One logged pruning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pruning {
    pub at: Time,
    pub kind: String,
    pub rows: i64,
    pub why: String,
}

impl Store {
    /// Returns the last `limit` prunings, newest first.
    pub async fn recent_prunings(&self, limit: usize) -> Result<Vec<Pruning>, StoreError> {
        self.read(ListPrunings { limit }).await
    }
}

struct ListPrunings {
    limit: usize,
}

const RECENT: Sql = Sql::both(&["select at, kind, rows_pruned, why from prunings order by id desc limit $1"]);

impl Operation for ListPrunings {
    type Output = Vec<Pruning>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Pruning>, StoreError> {
        let rows = tx.query(&RECENT, &[Param::Int(self.limit as i64)]).await?;
        rows.iter()
            .map(|row| {
                Ok(Pruning {
                    at: row.time("at")?,
                    kind: row.text("kind")?,
                    rows: row.int("rows_pruned")?,
                    why: row.text("why")?,
                })
            })
            .collect()
    }
}
