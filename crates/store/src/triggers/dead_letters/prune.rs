//! Deletes resolved dead letters after their retention. Unresolved letters are never deleted by age.

use domain::limits::MAINTENANCE_ROWS;

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

impl Store {
    /// Runs one bounded pass and returns the number of deleted letters.
    pub async fn prune_dead_letters(&self, retention_s: i64) -> Result<u64, StoreError> {
        self.write(PruneDeadLetters { retention_s }).await
    }
}

struct PruneDeadLetters {
    retention_s: i64,
}

const PRUNE: Sql = Sql::both(&["delete from dead_letters where id in (
         select id from dead_letters where resolved_at is not null and resolved_at < $1 order by resolved_at, id limit $2)"]);
const PRUNE_HANDLERS: Sql = Sql::both(&["delete from letter_handlers where letter in (
         select id from dead_letters where resolved_at is not null and resolved_at < $1 order by resolved_at, id limit $2)"]);
const LOG: Sql = Sql::both(&["insert into prunings (at, kind, rows_pruned, why) values ($1, 'dead_letters', $2, $3)"]);

impl Operation for PruneDeadLetters {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        let now = tx.now();
        let params = [Param::Time(now.plus_s(-self.retention_s)), Param::Int(MAINTENANCE_ROWS as i64)];
        tx.execute(&PRUNE_HANDLERS, &params).await?;
        let pruned = tx.execute(&PRUNE, &params).await?;
        if pruned > 0 {
            let why = format!("resolved dead letters are retained for {} s", self.retention_s);
            tx.execute(&LOG, &[Param::Time(now), Param::Int(pruned as i64), Param::Text(&why)]).await?;
        }
        Ok(pruned)
    }
}
