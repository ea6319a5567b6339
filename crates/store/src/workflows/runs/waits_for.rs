//! What a waiting job waits for, for `why`.

use domain::JobId;

use crate::db::tx::{Param, Sql, Tx};
use crate::error::StoreError;

/// The first need of a waiting job that has not ended.
pub(crate) struct OpenNeed {
    pub(crate) job: JobId,
    pub(crate) name: String,
    /// The number of needs that have not ended, and of all needs.
    pub(crate) unmet: i64,
    pub(crate) of: i64,
}

// The first by state: a need that does not wait itself explains more than one that does.
const OPEN_NEED: Sql = Sql::both(&["select n.job, n.name, count(*) over () as unmet,
         (select count(*) from run_needs a where a.node = $1) as needs
     from run_needs e join run_nodes n on n.job = e.need left join jobs j on j.id = n.job
     where e.node = $1 and n.outcome is null
     order by case when j.state = 'waiting' then 1 else 0 end, n.name limit 1"]);

pub(crate) async fn open_need(tx: &mut Tx<'_>, job: JobId) -> Result<Option<OpenNeed>, StoreError> {
    let Some(row) = tx.query_opt(&OPEN_NEED, &[Param::from(job)]).await? else { return Ok(None) };
    let (unmet, of) = (row.int("unmet")?, row.int("needs")?);
    Ok(Some(OpenNeed { job: row.job("job")?, name: row.text("name")?, unmet, of }))
}
