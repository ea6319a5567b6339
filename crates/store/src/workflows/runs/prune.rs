//! Deletes ended runs whose jobs are all deleted. The engine's prune task calls it.

use domain::limits::{MAINTENANCE_ROWS, RETENTION_DEFAULT_S};

use crate::db::tx::{Column, Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

impl Store {
    /// Deletes one batch of ended runs without jobs. Returns their number.
    pub async fn prune_runs(&self) -> Result<usize, StoreError> {
        self.write(PruneRuns).await
    }
}

struct PruneRuns;

const OLD: Sql = Sql::both(&["select r.tenant, r.run from runs r
     where r.finished_at < $1 and not exists (select 1 from ended e where e.tenant = r.tenant and e.run = r.run)
         and not exists (select 1 from jobs j where j.tenant = r.tenant and j.run = r.run)
     order by r.finished_at limit $2"]);
// A retry of the run needs the jobs of this one only while they exist.
const DELETE_NEEDS: Sql = Sql::new(
    &["delete from run_needs where (need, node) in (select e.need, e.node from run_nodes n
           join run_needs e on e.node = n.job where n.tenant = $1 and n.run = $2)"],
    "delete from run_needs e using unnest($1::bigint[], $2::text[]) as p(tenant, run), run_nodes n
     where n.tenant = p.tenant and n.run = p.run and e.node = n.job",
);
const DELETE_NODES: Sql = Sql::new(
    &["delete from run_nodes where tenant = $1 and run = $2"],
    "delete from run_nodes n using unnest($1::bigint[], $2::text[]) as p(tenant, run)
     where n.tenant = p.tenant and n.run = p.run",
);
const DELETE: Sql = Sql::new(
    &["delete from runs where tenant = $1 and run = $2 and finished_at is not null"],
    "delete from runs r using unnest($1::bigint[], $2::text[]) as p(tenant, run)
     where r.tenant = p.tenant and r.run = p.run and r.finished_at is not null",
);

impl Operation for PruneRuns {
    type Output = usize;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<usize, StoreError> {
        let params = [Param::Time(tx.now().plus_s(-RETENTION_DEFAULT_S)), Param::Int(MAINTENANCE_ROWS as i64)];
        let rows = tx.query(&OLD, &params).await?;
        let mut runs: Vec<(i64, String)> =
            rows.iter().map(|row| Ok((row.int("tenant")?, row.text("run")?))).collect::<Result<_, StoreError>>()?;
        runs.sort();
        let columns = [
            Column::ints(runs.iter().map(|(tenant, _)| *tenant)),
            Column::texts(runs.iter().map(|(_, run)| run.as_str())),
        ];
        for delete in [&DELETE_NEEDS, &DELETE_NODES, &DELETE] {
            tx.execute_each(delete, &columns, &[]).await?;
        }
        Ok(runs.len())
    }
}
