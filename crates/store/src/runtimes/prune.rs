//! Deletes operations and health records past the retention of timelines. Open operations remain. Called by the prune
//! task.

use domain::limits::{MAINTENANCE_ROWS, TIMELINE_RETENTION_S};

use crate::db::clock::new_uuid;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

impl Store {
    /// Deletes one bounded batch. Returns the number of rows deleted.
    pub async fn prune_runtimes(&self) -> Result<u64, StoreError> {
        self.write(PruneRuntimes).await
    }
}

struct PruneRuntimes;

// Ids are UUIDv7 and begin with their creation time.
const OPERATIONS: Sql = Sql::both(&["delete from operations where id in (
         select id from operations where id < $1 and finished_at is not null order by id limit $2)"]);
const HEALTHS: Sql = Sql::both(&["delete from healths where id in (
         select id from healths where id < $1 order by id limit $2)"]);
const LOG: Sql = Sql::both(&["insert into prunings (at, kind, rows_pruned, why) values ($1, $2, $3, $4)"]);

impl Operation for PruneRuntimes {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        let now = tx.now();
        let params = [Param::Uuid(new_uuid(now.plus_s(-TIMELINE_RETENTION_S))), Param::Int(MAINTENANCE_ROWS as i64)];
        let deleted = tx.execute(&OPERATIONS, &params).await? + tx.execute(&HEALTHS, &params).await?;
        if deleted > 0 {
            let why = format!("retention of operations and health records is {} days", TIMELINE_RETENTION_S / 86_400);
            let log = [Param::Time(now), Param::Text("runtimes"), Param::Int(deleted as i64), Param::Text(&why)];
            tx.execute(&LOG, &log).await?;
        }
        Ok(deleted)
    }
}
