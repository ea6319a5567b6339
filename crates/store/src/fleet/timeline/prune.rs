//! Deletes timeline rows past their retention. Called by the prune task.

use domain::limits::{MAINTENANCE_ROWS, TIMELINE_RETENTION_S};

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

impl Store {
    /// Deletes one bounded batch. Returns the number of rows deleted.
    pub async fn prune_timeline(&self, retention_s: i64) -> Result<u64, StoreError> {
        self.write(PruneTimeline { retention_s }).await
    }
}

struct PruneTimeline {
    retention_s: i64,
}

// A row without a subject or runtime is an administrative action. Such rows have a minimum retention
// (`TIMELINE_RETENTION_S`), whatever the configured one.
const OLD: Sql = Sql::both(&["delete from timeline where id in (
         select id from timeline where at < $1 and (subject is not null or runtime is not null or at < $3)
         order by at, id limit $2)"]);
const LOG: Sql = Sql::both(&["insert into prunings (at, kind, rows_pruned, why) values ($1, 'timeline', $2, $3)"]);

impl Operation for PruneTimeline {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        let now = tx.now();
        let cutoff = |retention_s: i64| Param::Time(now.plus_s(-retention_s));
        let administrative = cutoff(self.retention_s.max(TIMELINE_RETENTION_S));
        let params = [cutoff(self.retention_s), Param::Int(MAINTENANCE_ROWS as i64), administrative];
        let deleted = tx.execute(&OLD, &params).await?;
        if deleted > 0 {
            let why = format!("timeline retention is {} s", self.retention_s);
            tx.execute(&LOG, &[Param::Time(now), Param::Int(deleted as i64), Param::Text(&why)]).await?;
        }
        Ok(deleted)
    }
}
