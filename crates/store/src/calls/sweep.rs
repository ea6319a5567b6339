//! Calls whose caller is gone: a job that has not begun is called off, one that runs goes on, and its answer is kept.

use domain::limits::MAINTENANCE_ROWS;
use domain::{JobId, TenantId, Time};
use uuid::Uuid;

use crate::codec::error_to_json;
use crate::error::StoreError;
use crate::jobs::cancel::Canceled;
use crate::jobs::get;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweptCalls {
    pub canceled: usize,
    pub kept: usize,
    pub pruned: u64,
}

impl Store {
    pub async fn sweep_calls(&self, retention_s: i64) -> Result<SweptCalls, StoreError> {
        let mut swept = SweptCalls::default();
        let mut after = JobId::new(Uuid::nil());
        // Those at work stay, and must not hide the others.
        loop {
            let orphans = self.read(Orphans { after }).await?;
            for call in &orphans {
                self.sweep_call(*call, &mut swept).await?;
            }
            match orphans.last() {
                Some(last) if orphans.len() == MAINTENANCE_ROWS => after = last.job,
                _ => break,
            }
        }
        swept.pruned = self.write(Prune { retention_s }).await?;
        Ok(swept)
    }

    async fn sweep_call(&self, call: Call, swept: &mut SweptCalls) -> Result<(), StoreError> {
        match self.job(call.tenant, call.job).await? {
            Some(job) if job.state.is_terminal() => {
                swept.kept += usize::from(self.write(Keep { call }).await?);
            }
            Some(_) => match self.cancel_waiting(call.tenant, call.job, "its caller is gone".into()).await? {
                Canceled::Canceled(_) => {
                    self.end_call(call.job).await?;
                    swept.canceled += 1;
                }
                // What it answers, or has just answered, is kept by a later sweep.
                Canceled::AtWork | Canceled::AlreadyEnded(_) | Canceled::NotFound => {}
            },
            None => self.end_call(call.job).await?,
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
struct Call {
    job: JobId,
    tenant: TenantId,
    called_at: Time,
    gone_at: Option<Time>,
}

struct Orphans {
    after: JobId,
}

const ORPHANS: Sql = Sql::both(&["select job, tenant, called_at, gone_at from calls
     where (gone_at is not null or until < $1) and job > $3 order by job limit $2"]);
const KEEP: Sql = Sql::both(&["insert into abandoned_executions
         (job, tenant, queue, kind, state, result, error, principal, called_at, ended_at, abandoned_at)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) on conflict do nothing"]);
const DONE: Sql = Sql::both(&["delete from calls where job = $1"]);
const OLD: Sql = Sql::both(&["delete from abandoned_executions where job in (
         select job from abandoned_executions where abandoned_at < $1 order by abandoned_at limit $2)"]);
const LOG: Sql =
    Sql::both(&["insert into prunings (at, kind, rows_pruned, why) values ($1, 'abandoned_executions', $2, $3)"]);

impl Operation for Orphans {
    type Output = Vec<Call>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Call>, StoreError> {
        let params = [Param::Time(tx.now()), Param::Int(MAINTENANCE_ROWS as i64), Param::from(self.after)];
        let rows = tx.query(&ORPHANS, &params).await?;
        let call = |row: &crate::tx::Row| {
            Ok(Call {
                job: row.job(0)?,
                tenant: TenantId(row.int(1)?),
                called_at: row.time(2)?,
                gone_at: row.opt_time(3)?,
            })
        };
        rows.iter().map(call).collect()
    }
}

struct Keep {
    call: Call,
}

impl Operation for Keep {
    type Output = bool;

    /// Whether this was the node that kept it.
    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let Call { job: id, tenant, called_at, gone_at } = self.call;
        let now = tx.now();
        if tx.execute(&DONE, &[Param::from(id)]).await? == 0 {
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
        tx.execute(&KEEP, &params).await?;
        Ok(true)
    }
}

struct Prune {
    retention_s: i64,
}

impl Operation for Prune {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        let now = tx.now();
        let params = [Param::Time(now.plus_s(-self.retention_s)), Param::Int(MAINTENANCE_ROWS as i64)];
        let pruned = tx.execute(&OLD, &params).await?;
        if pruned > 0 {
            let why = format!("abandoned executions are kept {} s", self.retention_s);
            tx.execute(&LOG, &[Param::Time(now), Param::Int(pruned as i64), Param::Text(&why)]).await?;
        }
        Ok(pruned)
    }
}
