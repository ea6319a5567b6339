//! Deletes ended deliveries after their retention. Endpoints are never deleted: a concurrent insert or redelivery relies on
//! their rows.

use domain::Time;
use domain::limits::{DELIVERY_RETENTION_S, FAILED_DELIVERY_RETENTION_S, MAINTENANCE_ROWS};
use uuid::Uuid;

use crate::db::tx::{Column, Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

impl Store {
    /// Runs one bounded pass and returns the number of deleted deliveries. The caller repeats it while a pass was full.
    pub async fn prune_deliveries(&self) -> Result<u64, StoreError> {
        let mut pruned = 0;
        for (state, retention_s) in [("delivered", DELIVERY_RETENTION_S), ("failed", FAILED_DELIVERY_RETENTION_S)] {
            // Deliveries that unresolved letters refer to are skipped in a read transaction, which blocks no writer.
            let ids = self.read(FindEndedDeliveries { state, retention_s }).await?;
            if !ids.is_empty() {
                pruned += self.write(PruneDeliveries { state, retention_s, ids }).await?;
            }
        }
        Ok(pruned)
    }
}

struct FindEndedDeliveries {
    state: &'static str,
    retention_s: i64,
}

struct PruneDeliveries {
    state: &'static str,
    retention_s: i64,
    /// The deliveries that the scan found.
    ids: Vec<Uuid>,
}

// A dead letter is replayed from its delivery, so the delivery stays as long as the letter can be replayed.
const OLD: Sql = Sql::both(&["select id from deliveries where state = $1 and ended_at < $2
         and not exists (select 1 from dead_letters l where l.id = deliveries.letter
             and (l.resolved_at is null or l.resolution in ('handled_by_script', 'handler_failed')))
     order by ended_at limit $3"]);
// Check again: a delivery may have been redelivered since the scan.
const STILL_OLD: Sql = Sql::new(
    &["select id from deliveries where id = $1 and state = $2 and ended_at < $3
           and not exists (select 1 from dead_letters l where l.id = deliveries.letter
               and (l.resolved_at is null or l.resolution in ('handled_by_script', 'handler_failed')))"],
    "select d.id from deliveries d where d.id = any($1::uuid[]) and d.state = $2 and d.ended_at < $3
         and not exists (select 1 from dead_letters l where l.id = d.letter
             and (l.resolved_at is null or l.resolution in ('handled_by_script', 'handler_failed')))
     for update of d skip locked",
);
const DELETE: Sql = Sql::new(
    &["delete from delivery_attempts where delivery = $1", "delete from deliveries where id = $1"],
    "with no_attempts as (delete from delivery_attempts where delivery = any($1::uuid[]))
     delete from deliveries where id = any($1::uuid[])",
);
const LOG: Sql = Sql::both(&["insert into prunings (at, kind, rows_pruned, why) values ($1, 'deliveries', $2, $3)"]);

fn ended_before(now: Time, retention_s: i64) -> Param<'static> {
    Param::Time(now.plus_s(-retention_s))
}

fn read_ids(rows: &[Row]) -> Result<Vec<Uuid>, StoreError> {
    rows.iter().map(|row| row.uuid("id")).collect()
}

impl Operation for FindEndedDeliveries {
    type Output = Vec<Uuid>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Uuid>, StoreError> {
        let before = ended_before(tx.now(), self.retention_s);
        let params = [Param::Text(self.state), before, Param::Int(MAINTENANCE_ROWS as i64)];
        read_ids(&tx.query(&OLD, &params).await?)
    }
}

impl Operation for PruneDeliveries {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        let now = tx.now();
        let Self { state, retention_s, ids } = self;
        let params = [Param::Text(state), ended_before(now, *retention_s)];
        let ended = read_ids(&tx.query_each(&STILL_OLD, &[Column::uuids(ids.iter().copied())], &params).await?)?;
        if ended.is_empty() {
            return Ok(0);
        }
        let count = ended.len() as i64;
        tx.execute_each(&DELETE, &[Column::uuids(ended)], &[]).await?;
        let why = format!("{state} deliveries are retained for {retention_s} s");
        tx.execute(&LOG, &[Param::Time(now), Param::Int(count), Param::Text(&why)]).await?;
        Ok(count as u64)
    }
}
