//! What was pruned lately, when and why (X13).

use domain::Time;

use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pruning {
    pub at: Time,
    pub kind: String,
    pub rows: i64,
    pub why: String,
}

impl Store {
    /// Newest first.
    pub async fn recent_prunings(&self, limit: usize) -> Result<Vec<Pruning>, StoreError> {
        self.read(Recent { limit }).await
    }
}

struct Recent {
    limit: usize,
}

const RECENT: Sql = Sql::both(&["select at, kind, rows_pruned, why from prunings order by id desc limit $1"]);

impl Operation for Recent {
    type Output = Vec<Pruning>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Pruning>, StoreError> {
        let rows = tx.query(&RECENT, &[Param::Int(self.limit as i64)]).await?;
        rows.iter()
            .map(|row| Ok(Pruning { at: row.time(0)?, kind: row.text(1)?, rows: row.int(2)?, why: row.text(3)? }))
            .collect()
    }
}
