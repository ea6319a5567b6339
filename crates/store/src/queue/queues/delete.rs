//! Deletes a queue without jobs: its settings, its pause and its counters. Its lanes stay, because nodes cache them
//! without expiry; the next job creates the queue again with default settings.

use domain::{Name, TenantId};
use serde_json::json;

use crate::access::caller::Caller;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::timeline;
use crate::fleet::timeline::Entry;
use crate::store::Store;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueDeletion {
    Deleted,
    NotFound,
    /// Jobs have not ended, or ended jobs are retained.
    HasJobs,
}

impl Store {
    pub async fn delete_queue(&self, tenant: TenantId, name: Name, by: Caller) -> Result<QueueDeletion, StoreError> {
        let deletion = self.write(DeleteQueue { tenant, name: name.clone(), by }).await?;
        self.queue_snapshot_cache().invalidate(&(tenant, name));
        Ok(deletion)
    }
}

struct DeleteQueue {
    tenant: TenantId,
    name: Name,
    by: Caller,
}

const EXISTS: Sql = Sql::both(&["select 1 as one from queues where tenant = $1 and name = $2
     union all select 1 from counters where tenant = $1 and queue = $2
     union all select 1 from counter_deltas where tenant = $1 and queue = $2 limit 1"]);
const HAS_JOBS: Sql = Sql::both(&["select 1 as one from lanes l where l.tenant = $1 and l.queue = $2
         and (exists (select 1 from jobs j where j.lane = l.lane)
              or exists (select 1 from ended e where e.lane = l.lane)) limit 1"]);
// One statement on PostgreSQL: a job that another transaction commits meanwhile is seen with its counters or not at all.
const DELETE: Sql = Sql::new(
    &[
        "delete from counter_deltas where tenant = $1 and queue = $2",
        "delete from counters where tenant = $1 and queue = $2",
        "delete from queues where tenant = $1 and name = $2",
        "delete from rates where tenant = $1 and queue = $2",
    ],
    "with busy as (
         select 1 from lanes l where l.tenant = $1 and l.queue = $2
             and (exists (select 1 from jobs j where j.lane = l.lane)
                  or exists (select 1 from ended e where e.lane = l.lane)) limit 1),
     deltas as (
         delete from counter_deltas where tenant = $1 and queue = $2 and not exists (select 1 from busy)),
     totals as (delete from counters where tenant = $1 and queue = $2 and not exists (select 1 from busy)),
     settings as (delete from queues where tenant = $1 and name = $2 and not exists (select 1 from busy)),
     bucket as (delete from rates where tenant = $1 and queue = $2 and not exists (select 1 from busy))
     select count(*) as busy from busy",
);

impl Operation for DeleteQueue {
    type Output = QueueDeletion;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<QueueDeletion, StoreError> {
        // The task that folds counters must not add changes to a row that is deleted here.
        let queue = format!("windlass queue {} {}", self.tenant.0, self.name);
        tx.lock(&["windlass fold counters", &queue]).await?;
        let params = [Param::Int(self.tenant.0), Param::Text(self.name.as_str())];
        if tx.query_opt(&HAS_JOBS, &params).await?.is_some() {
            return Ok(QueueDeletion::HasJobs);
        }
        if tx.query_opt(&EXISTS, &params).await?.is_none() {
            return Ok(QueueDeletion::NotFound);
        }
        let rows = tx.query(&DELETE, &params).await?;
        if let Some(row) = rows.first()
            && row.int("busy")? > 0
        {
            return Ok(QueueDeletion::HasJobs);
        }
        let data = json!({"queue": self.name.as_str()}).to_string();
        timeline::write(tx, &[Entry::by(self.tenant, &self.by.name, "queue_deleted", data)]).await?;
        Ok(QueueDeletion::Deleted)
    }
}
