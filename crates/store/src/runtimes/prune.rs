//! Forgets operations and healths after as long as timelines are kept (X13). What is in flight stays.

use domain::limits::{MAINTENANCE_ROWS, TIMELINE_RETENTION_S};

use crate::clock::new_uuid;
use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

impl Store {
    /// One bounded round; tells how many rows went.
    pub async fn prune_runtimes(&self) -> Result<u64, StoreError> {
        self.write(Prune).await
    }
}

struct Prune;

// Ids begin with their time.
const OPERATIONS: Sql = Sql::both(&["delete from operations where id in (
         select id from operations where id < $1 and finished_at is not null order by id limit $2)"]);
const HEALTHS: Sql = Sql::both(&["delete from healths where id in (
         select id from healths where id < $1 order by id limit $2)"]);
const LOG: Sql = Sql::both(&["insert into prunings (at, kind, rows_pruned, why) values ($1, $2, $3, $4)"]);

impl Operation for Prune {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        let now = tx.now();
        let params = [Param::Uuid(new_uuid(now.plus_s(-TIMELINE_RETENTION_S))), Param::Int(MAINTENANCE_ROWS as i64)];
        let gone = tx.execute(&OPERATIONS, &params).await? + tx.execute(&HEALTHS, &params).await?;
        if gone > 0 {
            let why = format!("operations and healths are kept {} days", TIMELINE_RETENTION_S / 86_400);
            let log = [Param::Time(now), Param::Text("runtimes"), Param::Int(gone as i64), Param::Text(&why)];
            tx.execute(&LOG, &log).await?;
        }
        Ok(gone)
    }
}
