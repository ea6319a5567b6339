//! Finds history rows past their retention, in batches. Rows of jobs that still exist are retained with their jobs, so
//! a scan may have to skip many rows.

use std::collections::HashSet;

use domain::limits::{MAINTENANCE_BATCHES, MAINTENANCE_ROWS};
use domain::{JobId, Time};
use uuid::Uuid;

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;

/// The primary key of a history row: job, epoch and event.
pub(super) type HistoryKey = (JobId, i64, String);

/// A position in the order of history by time.
pub(super) type HistoryCursor = (Time, Uuid);

pub(super) struct OldHistory {
    pub(super) history_retention_s: i64,
    /// The position after which the scan starts. `None` starts at the beginning.
    pub(super) after: Option<HistoryCursor>,
}

const BEGINNING: HistoryCursor = (Time::from_micros(i64::MIN), Uuid::nil());

const OLD_HISTORY: Sql = Sql::both(&["select job, epoch, event, at from history
     where at < $1 and (at, job) > ($3, $4) order by at, job limit $2"]);
// History of jobs that still exist is retained.
const KEPT: Sql = Sql::new(
    &["select j.id from rarray($1) n cross join jobs j where j.id = n.value
       union all select e.id from rarray($1) n cross join ended e where e.id = n.value"],
    "select id from jobs where id = any($1::uuid[])
     union all select id from ended where id = any($1::uuid[])",
);

impl Operation for OldHistory {
    /// The rows to delete, and where the scan stopped. The position is `None` when the scan reached the end.
    type Output = (Vec<HistoryKey>, Option<HistoryCursor>);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let before = tx.now().plus_s(-self.history_retention_s);
        let (mut expired, (mut at, mut job)) = (Vec::new(), self.after.unwrap_or(BEGINNING));
        for _ in 0..MAINTENANCE_BATCHES {
            let rows = Param::Int(MAINTENANCE_ROWS as i64);
            let rows = tx.query(&OLD_HISTORY, &[Param::Time(before), rows, Param::Time(at), Param::Uuid(job)]).await?;
            let jobs = rows.iter().map(|row| row.uuid("job")).collect::<Result<Vec<_>, _>>()?;
            let existing = tx.query_by_ids(&KEPT, &jobs, &[]).await?;
            let existing = existing.iter().map(|row| row.uuid("id")).collect::<Result<HashSet<_>, _>>()?;
            for row in &rows {
                if expired.len() == MAINTENANCE_ROWS {
                    return Ok((expired, Some((at, job))));
                }
                (at, job) = (row.time("at")?, row.uuid("job")?);
                if !existing.contains(&job) {
                    expired.push((JobId::new(job), row.int("epoch")?, row.text("event")?));
                }
            }
            if rows.len() < MAINTENANCE_ROWS {
                return Ok((expired, None));
            }
        }
        Ok((expired, Some((at, job))))
    }
}
