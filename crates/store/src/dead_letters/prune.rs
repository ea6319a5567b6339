//! Forgets resolved letters after their retention. Unresolved ones are never pruned by age (T9).

use domain::limits::MAINTENANCE_ROWS;

use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

impl Store {
    /// One bounded round; gives how many went.
    pub async fn prune_dead_letters(&self, retention_s: i64) -> Result<u64, StoreError> {
        self.write(Prune { retention_s }).await
    }
}

struct Prune {
    retention_s: i64,
}

const PRUNE: Sql = Sql::both(&["delete from dead_letters where id in (
         select id from dead_letters where resolved_at is not null and resolved_at < $1 order by resolved_at, id limit $2)"]);
const LOG: Sql = Sql::both(&["insert into prunings (at, kind, rows_pruned, why) values ($1, 'dead_letters', $2, $3)"]);

impl Operation for Prune {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        let now = tx.now();
        let params = [Param::Time(now.plus_s(-self.retention_s)), Param::Int(MAINTENANCE_ROWS as i64)];
        let pruned = tx.execute(&PRUNE, &params).await?;
        if pruned > 0 {
            let why = format!("dead letters are kept {} s after they are resolved", self.retention_s);
            tx.execute(&LOG, &[Param::Time(now), Param::Int(pruned as i64), Param::Text(&why)]).await?;
        }
        Ok(pruned)
    }
}
