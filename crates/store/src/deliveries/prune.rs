//! Forgets deliveries that have ended (X13). Endpoints stay: whoever is writing a delivery counts on its row, and so does
//! whoever sends an old one again.

use domain::Time;
use domain::limits::{DELIVERY_RETENTION_S, FAILED_DELIVERY_RETENTION_S, MAINTENANCE_ROWS};
use uuid::Uuid;

use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Column, Operation, Param, Row, Sql, Tx};

impl Store {
    /// One bounded round; the caller comes again while it was a full one.
    pub async fn prune_deliveries(&self) -> Result<u64, StoreError> {
        let mut pruned = 0;
        for (state, kept_s) in [("delivered", DELIVERY_RETENTION_S), ("failed", FAILED_DELIVERY_RETENTION_S)] {
            // Those that their letters keep are passed by where that holds up nobody who writes.
            let old = self.read(Old { state, kept_s }).await?;
            if !old.is_empty() {
                pruned += self.write(Prune { state, kept_s, old }).await?;
            }
        }
        Ok(pruned)
    }
}

struct Old {
    state: &'static str,
    kept_s: i64,
}

struct Prune {
    state: &'static str,
    kept_s: i64,
    /// What was found a moment ago.
    old: Vec<Uuid>,
}

// A letter is played again from the delivery that left it, so that one stays as long as its letter may be (T9).
const OLD: Sql = Sql::both(&["select id from deliveries where state = $1 and ended_at < $2
         and not exists (select 1 from dead_letters l where l.id = deliveries.letter
             and (l.resolved_at is null or l.resolution = 'handler_failed'))
     order by ended_at limit $3"]);
// Someone may have it sent again meanwhile.
const STILL_OLD: Sql = Sql::new(
    &["select id from deliveries where id = $1 and state = $2 and ended_at < $3
           and not exists (select 1 from dead_letters l where l.id = deliveries.letter
               and (l.resolved_at is null or l.resolution = 'handler_failed'))"],
    "select d.id from deliveries d where d.id = any($1::uuid[]) and d.state = $2 and d.ended_at < $3
         and not exists (select 1 from dead_letters l where l.id = d.letter
             and (l.resolved_at is null or l.resolution = 'handler_failed'))
     for update of d skip locked",
);
const DELETE: Sql = Sql::new(
    &["delete from delivery_attempts where delivery = $1", "delete from deliveries where id = $1"],
    "with no_attempts as (delete from delivery_attempts where delivery = any($1::uuid[]))
     delete from deliveries where id = any($1::uuid[])",
);
const LOG: Sql = Sql::both(&["insert into prunings (at, kind, rows_pruned, why) values ($1, 'deliveries', $2, $3)"]);

fn ended_before(now: Time, kept_s: i64) -> Param<'static> {
    Param::Time(now.plus_s(-kept_s))
}

fn ids(rows: &[Row]) -> Result<Vec<Uuid>, StoreError> {
    rows.iter().map(|row| row.uuid(0)).collect()
}

impl Operation for Old {
    type Output = Vec<Uuid>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Uuid>, StoreError> {
        let before = ended_before(tx.now(), self.kept_s);
        let params = [Param::Text(self.state), before, Param::Int(MAINTENANCE_ROWS as i64)];
        ids(&tx.query(&OLD, &params).await?)
    }
}

impl Operation for Prune {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        let now = tx.now();
        let Self { state, kept_s, old } = self;
        let params = [Param::Text(state), ended_before(now, *kept_s)];
        let old = ids(&tx.query_each(&STILL_OLD, &[Column::uuids(old.iter().copied())], &params).await?)?;
        if old.is_empty() {
            return Ok(0);
        }
        let count = old.len() as i64;
        tx.execute_each(&DELETE, &[Column::uuids(old)], &[]).await?;
        let why = format!("{state} deliveries are kept {kept_s} s after they end");
        tx.execute(&LOG, &[Param::Time(now), Param::Int(count), Param::Text(&why)]).await?;
        Ok(count as u64)
    }
}
