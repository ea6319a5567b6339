//! Counts new jobs into their runs. The first job that names an unknown run creates it as an open run.

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::{TenantId, Time};

use crate::db::tx::{Column, Param, Sql, Tx};
use crate::error::StoreError;

/// New jobs of one run.
pub(crate) struct Joining {
    pub(crate) jobs: i64,
    pub(crate) principal: Arc<str>,
    pub(crate) depth: i32,
}

// A job that joins an open run after its end opens it again. A run that was started ends once: a job that names it later is
// counted and does not open it.
const JOIN: Sql = Sql::new(
    &["insert into runs (tenant, run, live, principal, depth, state, on_failure, is_open, succeeded, failed, canceled,
           skipped, version, created_at)
       values ($1, $2, $3, $4, $5, 'running', 'continue', 1, 0, 0, 0, 0, 1, $6)
       on conflict (tenant, run) do update set live = runs.live + excluded.live, version = runs.version + 1,
           state = case when runs.is_open then 'running' else runs.state end,
           finished_at = case when runs.is_open then null else runs.finished_at end"],
    "insert into runs (tenant, run, live, principal, depth, state, on_failure, is_open, succeeded, failed, canceled,
         skipped, version, created_at)
     select n.tenant, n.run, n.jobs, n.principal, n.depth, 'running', 'continue', true, 0, 0, 0, 0, 1, $6
     from unnest($1::bigint[], $2::text[], $3::bigint[], $4::text[], $5::bigint[]) as n(tenant, run, jobs, principal, depth)
     order by n.tenant, n.run
     on conflict (tenant, run) do update set live = runs.live + excluded.live, version = runs.version + 1,
         state = case when runs.is_open then 'running' else runs.state end,
         finished_at = case when runs.is_open then null else runs.finished_at end",
);

/// Counts the jobs into their runs. The rows of the runs stay locked, so the caller acquires no other locks afterwards.
pub(crate) async fn join(tx: &mut Tx<'_>, runs: &BTreeMap<(TenantId, &str), Joining>) -> Result<(), StoreError> {
    let now: Time = tx.now();
    let columns = [
        Column::ints(runs.keys().map(|(tenant, _)| tenant.0)),
        Column::texts(runs.keys().map(|(_, run)| *run)),
        Column::ints(runs.values().map(|joining| joining.jobs)),
        Column::texts(runs.values().map(|joining| &*joining.principal)),
        Column::ints(runs.values().map(|joining| i64::from(joining.depth))),
    ];
    tx.execute_each(&JOIN, &columns, &[Param::Time(now)]).await.map(|_| ())
}
