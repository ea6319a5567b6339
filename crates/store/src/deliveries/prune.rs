//! Forgets deliveries that have ended (X13). Endpoints stay: there are few, and whoever is writing a delivery counts on its row.

use domain::limits::{DELIVERY_RETENTION_S, FAILED_DELIVERY_RETENTION_S, MAINTENANCE_ROWS};

use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Column, Operation, Param, Sql, Tx};

impl Store {
    /// One bounded round; the caller comes again while it was a full one.
    pub async fn prune_deliveries(&self) -> Result<u64, StoreError> {
        self.write(Prune).await
    }
}

struct Prune;

// A letter is played again from the delivery that left it, so that one stays as long as its letter may be (T9).
const OLD: Sql = Sql::both(&["select id from deliveries where state = $1 and ended_at < $2
         and not exists (select 1 from dead_letters l where l.id = deliveries.letter
             and (l.resolved_at is null or l.resolution = 'handler_failed'))
     order by ended_at limit $3"]);
const DELETE: Sql = Sql::new(
    &["delete from delivery_attempts where delivery = $1", "delete from deliveries where id = $1"],
    "with no_attempts as (delete from delivery_attempts where delivery = any($1::uuid[]))
     delete from deliveries where id = any($1::uuid[])",
);
const LOG: Sql = Sql::both(&["insert into prunings (at, kind, rows_pruned, why) values ($1, 'deliveries', $2, $3)"]);

impl Operation for Prune {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        let now = tx.now();
        let mut pruned = 0;
        for (state, kept_s) in [("delivered", DELIVERY_RETENTION_S), ("failed", FAILED_DELIVERY_RETENTION_S)] {
            let params = [Param::Text(state), Param::Time(now.plus_s(-kept_s)), Param::Int(MAINTENANCE_ROWS as i64)];
            let rows = tx.query(&OLD, &params).await?;
            let ids = rows.iter().map(|row| row.uuid(0)).collect::<Result<Vec<_>, _>>()?;
            if ids.is_empty() {
                continue;
            }
            let count = ids.len() as u64;
            tx.execute_each(&DELETE, &[Column::uuids(ids)], &[]).await?;
            let why = format!("{state} deliveries are kept {kept_s} s after they end");
            tx.execute(&LOG, &[Param::Time(now), Param::Int(count as i64), Param::Text(&why)]).await?;
            pruned += count;
        }
        Ok(pruned)
    }
}
