//! Cleans up calls whose caller disconnected. A job that waits is canceled; a job that runs continues, and its result
//! is stored. The engine's call sweep calls it.

use domain::limits::MAINTENANCE_ROWS;
use domain::{JobId, TenantId, Time};
use uuid::Uuid;

use crate::db::codec::error_to_json;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::cancel::Canceled;
use crate::queue::get;
use crate::store::Store;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweptCalls {
    pub canceled: usize,
    pub stored: usize,
    pub pruned: u64,
}

impl Store {
    pub async fn sweep_calls(&self, retention_s: i64) -> Result<SweptCalls, StoreError> {
        let mut swept = SweptCalls::default();
        let mut after = JobId::new(Uuid::nil());
        // Page through the calls: those with running jobs remain and must not hide the others.
        loop {
            let orphans = self.read(ListOrphans { after }).await?;
            for call in &orphans {
                self.sweep_call(*call, &mut swept).await?;
            }
            match orphans.last() {
                Some(last) if orphans.len() == MAINTENANCE_ROWS => after = last.job,
                _ => break,
            }
        }
        swept.pruned = self.write(PruneAbandonedExecutions { retention_s }).await?;
        Ok(swept)
    }

    async fn sweep_call(&self, call: OrphanedCall, swept: &mut SweptCalls) -> Result<(), StoreError> {
        match self.job(call.tenant, call.job).await? {
            Some(job) if job.state.is_terminal() => {
                swept.stored += usize::from(self.write(StoreAbandonedExecution { call }).await?);
            }
            Some(_) => match self.cancel_waiting(call.tenant, call.job, "caller disconnected".into()).await? {
                Canceled::Canceled(_) => {
                    self.end_call(call.job).await?;
                    swept.canceled += 1;
                }
                // A later sweep stores the result.
                Canceled::Claimed | Canceled::Compensating(..) | Canceled::AlreadyEnded(_) | Canceled::NotFound => {}
            },
            None => self.end_call(call.job).await?,
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
struct OrphanedCall {
    job: JobId,
    tenant: TenantId,
    called_at: Time,
    gone_at: Option<Time>,
}

struct ListOrphans {
    after: JobId,
}

const ORPHANS: Sql = Sql::both(&["select job, tenant, called_at, gone_at from calls
     where (gone_at is not null or until < $1) and job > $3 order by job limit $2"]);
const INSERT: Sql = Sql::both(&["insert into abandoned_executions
         (job, tenant, queue, kind, state, result, error, principal, called_at, ended_at, abandoned_at)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) on conflict do nothing"]);
const DELETE: Sql = Sql::both(&["delete from calls where job = $1"]);
const OLD: Sql = Sql::both(&["delete from abandoned_executions where job in (
         select job from abandoned_executions where abandoned_at < $1 order by abandoned_at limit $2)"]);
const LOG: Sql =
    Sql::both(&["insert into prunings (at, kind, rows_pruned, why) values ($1, 'abandoned_executions', $2, $3)"]);

impl Operation for ListOrphans {
    type Output = Vec<OrphanedCall>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<OrphanedCall>, StoreError> {
        let params = [Param::Time(tx.now()), Param::Int(MAINTENANCE_ROWS as i64), Param::from(self.after)];
        let rows = tx.query(&ORPHANS, &params).await?;
        let call = |row: &crate::db::tx::Row| {
            Ok(OrphanedCall {
                job: row.job("job")?,
                tenant: TenantId(row.int("tenant")?),
                called_at: row.time("called_at")?,
                gone_at: row.opt_time("gone_at")?,
            })
        };
        rows.iter().map(call).collect()
    }
}

struct StoreAbandonedExecution {
    call: OrphanedCall,
}

impl Operation for StoreAbandonedExecution {
    type Output = bool;

    /// Returns whether this node stored the result.
    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let OrphanedCall { job: id, tenant, called_at, gone_at } = self.call;
        let now = tx.now();
        if tx.execute(&DELETE, &[Param::from(id)]).await? == 0 {
            return Ok(false);
        }
        let Some(job) = get::find(tx, tenant, id).await? else { return Ok(false) };
        let error = job.error.as_ref().map(error_to_json);
        let params = [
            Param::from(id),
            Param::Int(tenant.0),
            Param::Text(job.lane.queue.as_str()),
            Param::Text(job.lane.kind.as_str()),
            Param::Text(job.state.as_str()),
            Param::json(job.result.as_deref()),
            Param::json(error.as_deref()),
            Param::Text(&job.principal),
            Param::Time(called_at),
            Param::time(job.finished_at),
            Param::Time(gone_at.unwrap_or(now)),
        ];
        tx.execute(&INSERT, &params).await?;
        Ok(true)
    }
}

struct PruneAbandonedExecutions {
    retention_s: i64,
}

impl Operation for PruneAbandonedExecutions {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        let now = tx.now();
        let params = [Param::Time(now.plus_s(-self.retention_s)), Param::Int(MAINTENANCE_ROWS as i64)];
        let pruned = tx.execute(&OLD, &params).await?;
        if pruned > 0 {
            let why = format!("abandoned executions are retained for {} s", self.retention_s);
            tx.execute(&LOG, &[Param::Time(now), Param::Int(pruned as i64), Param::Text(&why)]).await?;
        }
        Ok(pruned)
    }
}
