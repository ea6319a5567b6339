//! Finds history that is past its retention, a part at a time: what stands between may be kept with its jobs for long.

use std::collections::HashSet;

use domain::limits::{MAINTENANCE_PARTS, MAINTENANCE_ROWS};
use domain::{JobId, Time};
use uuid::Uuid;

use crate::error::StoreError;
use crate::tx::{Operation, Param, Sql, Tx};

/// A row's job, epoch and event.
pub(super) type Told = (JobId, i64, String);

/// A place in the order of history.
pub(super) type Place = (Time, Uuid);

pub(super) struct OldHistory {
    pub(super) history_retention_s: i64,
    /// Behind which the look begins, if not at the beginning.
    pub(super) after: Option<Place>,
}

const BEGINNING: Place = (Time::from_micros(i64::MIN), Uuid::nil());

const OLD_HISTORY: Sql = Sql::both(&["select job, epoch, event, at from history
     where at < $1 and (at, job) > ($3, $4) order by at, job limit $2"]);
// What a job that is still kept went through is kept with it.
const KEPT: Sql = Sql::new(
    &["select j.id from rarray($1) n cross join jobs j where j.id = n.value
       union all select e.id from rarray($1) n cross join ended e where e.id = n.value"],
    "select id from jobs where id = any($1::uuid[])
     union all select id from ended where id = any($1::uuid[])",
);

impl Operation for OldHistory {
    /// What may go, and how far the look got; nothing when it came to the end.
    type Output = (Vec<Told>, Option<Place>);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let before = tx.now().plus_s(-self.history_retention_s);
        let (mut told, (mut at, mut job)) = (Vec::new(), self.after.unwrap_or(BEGINNING));
        for _ in 0..MAINTENANCE_PARTS {
            let rows = Param::Int(MAINTENANCE_ROWS as i64);
            let rows = tx.query(&OLD_HISTORY, &[Param::Time(before), rows, Param::Time(at), Param::Uuid(job)]).await?;
            let jobs = rows.iter().map(|row| row.uuid(0)).collect::<Result<Vec<_>, _>>()?;
            let kept = tx.query_listed(&KEPT, &jobs, &[]).await?;
            let kept = kept.iter().map(|row| row.uuid(0)).collect::<Result<HashSet<_>, _>>()?;
            for row in &rows {
                if told.len() == MAINTENANCE_ROWS {
                    return Ok((told, Some((at, job))));
                }
                (at, job) = (row.time(3)?, row.uuid(0)?);
                if !kept.contains(&job) {
                    told.push((JobId::new(job), row.int(1)?, row.text(2)?));
                }
            }
            if rows.len() < MAINTENANCE_ROWS {
                return Ok((told, None));
            }
        }
        Ok((told, Some((at, job))))
    }
}
