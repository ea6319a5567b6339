//! Forgets what is past the timeline's retention (X13).

use domain::limits::{MAINTENANCE_ROWS, TIMELINE_RETENTION_S};

use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

impl Store {
    /// One bounded round; tells how many entries went.
    pub async fn prune_timeline(&self, retention_s: i64) -> Result<u64, StoreError> {
        self.write(Prune { retention_s }).await
    }
}

struct Prune {
    retention_s: i64,
}

// What tells neither of a subject nor of a runtime tells who did what here: that is kept for a year at least.
const OLD: Sql = Sql::both(&["delete from timeline where id in (
         select id from timeline where at < $1 and (subject is not null or runtime is not null or at < $3)
         order by at, id limit $2)"]);
const LOG: Sql = Sql::both(&["insert into prunings (at, kind, rows_pruned, why) values ($1, 'timeline', $2, $3)"]);

impl Operation for Prune {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        let now = tx.now();
        let old = |retention_s: i64| Param::Time(now.plus_s(-retention_s));
        let deeds = old(self.retention_s.max(TIMELINE_RETENTION_S));
        let params = [old(self.retention_s), Param::Int(MAINTENANCE_ROWS as i64), deeds];
        let gone = tx.execute(&OLD, &params).await?;
        if gone > 0 {
            let why = format!("timeline is kept {} s", self.retention_s);
            tx.execute(&LOG, &[Param::Time(now), Param::Int(gone as i64), Param::Text(&why)]).await?;
        }
        Ok(gone)
    }
}
