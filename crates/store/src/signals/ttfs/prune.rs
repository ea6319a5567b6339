//! Deletes events and rollups older than `TTFS_DAYS` days. Called by the prune task.

use domain::limits::{MAINTENANCE_ROWS, TTFS_DAYS};

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

impl Store {
    /// Deletes one bounded batch. Returns the number of events deleted.
    pub async fn prune_ttfs(&self) -> Result<u64, StoreError> {
        self.write(PruneTtfs).await
    }
}

struct PruneTtfs;

const EVENTS: Sql = Sql::both(&["delete from ttfs_events where id in (
         select id from ttfs_events where at < $1 order by at, id limit $2)"]);
const HOURS: Sql = Sql::both(&["delete from ttfs_hours where hour_at < $1"]);
const BUCKETS: Sql = Sql::both(&["delete from ttfs_buckets where hour_at < $1"]);
const LOG: Sql = Sql::both(&["insert into prunings (at, kind, rows_pruned, why) values ($1, $2, $3, $4)"]);

impl Operation for PruneTtfs {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        let now = tx.now();
        let cutoff = Param::Time(now.plus_s(-TTFS_DAYS * 86_400));
        let events = tx.execute(&EVENTS, &[cutoff, Param::Int(MAINTENANCE_ROWS as i64)]).await?;
        if events > 0 {
            tx.execute(&HOURS, &[cutoff]).await?;
            tx.execute(&BUCKETS, &[cutoff]).await?;
            let why = format!("TTFS retention is {TTFS_DAYS} days");
            let params = [Param::Time(now), Param::Text("ttfs"), Param::Int(events as i64), Param::Text(&why)];
            tx.execute(&LOG, &params).await?;
        }
        Ok(events)
    }
}
