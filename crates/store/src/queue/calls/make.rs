//! Creates the job of a call together with the row that records its waiting caller, and deletes that row.

use domain::{JobId, TenantId};

use crate::db::effects::Effects;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::enqueue::{Accepted, EnqueueBatch, EnqueueReply, EnqueueRequest, NewJob};
use crate::store::Store;

impl Store {
    /// Creates the job and records that a caller waits for it for `wait_ms` from now.
    pub async fn make_call(&self, tenant: TenantId, mut job: NewJob, wait_ms: i64) -> Result<Accepted, StoreError> {
        self.seal_webhooks(tenant, std::slice::from_mut(&mut job)).await?;
        let lanes = self.lane_ids(&[job.lane(tenant)]).await?;
        let enqueue = EnqueueBatch::one(EnqueueRequest::new(tenant, vec![job], lanes));
        let created = self.write(CreateCall { tenant, enqueue, wait_ms }).await?;
        self.announce(&Effects { ready: [(tenant, created.queue.clone())].into(), ..Effects::default() });
        Ok(created)
    }

    /// Deletes the call's row. To be called when the caller has received the result or a timeout.
    pub async fn end_call(&self, job: JobId) -> Result<(), StoreError> {
        self.write(EndCall { job }).await
    }

    /// Records that the caller disconnected. The job's result will be stored as an abandoned execution.
    pub async fn abandon_call(&self, job: JobId) -> Result<(), StoreError> {
        self.write(AbandonCall { job }).await
    }
}

struct CreateCall {
    tenant: TenantId,
    enqueue: EnqueueBatch,
    wait_ms: i64,
}

const INSERT: Sql = Sql::both(&["insert into calls (job, tenant, called_at, until) values ($1, $2, $3, $4)"]);
const DELETE: Sql = Sql::both(&["delete from calls where job = $1"]);
const MARK_ABANDONED: Sql = Sql::both(&["update calls set gone_at = $2 where job = $1"]);

impl Operation for CreateCall {
    type Output = Accepted;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Accepted, StoreError> {
        let created = match self.enqueue.run(tx).await?.pop() {
            Some(EnqueueReply::Accepted(mut jobs)) => jobs.pop(),
            _ => None,
        };
        let created = created.ok_or_else(|| StoreError::unexpected("a call created no job"))?;
        insert_call(tx, self.tenant, created.id, self.wait_ms).await?;
        Ok(created)
    }
}

/// Records that a caller waits for the job for `wait_ms` from now.
pub(crate) async fn insert_call(tx: &mut Tx<'_>, tenant: TenantId, job: JobId, wait_ms: i64) -> Result<(), StoreError> {
    let now = tx.now();
    let until = Param::Time(now.plus_ms(wait_ms));
    tx.execute(&INSERT, &[Param::from(job), Param::Int(tenant.0), Param::Time(now), until]).await.map(|_| ())
}

struct EndCall {
    job: JobId,
}

impl Operation for EndCall {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        tx.execute(&DELETE, &[Param::from(self.job)]).await.map(|_| ())
    }
}

struct AbandonCall {
    job: JobId,
}

impl Operation for AbandonCall {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let now = Param::Time(tx.now());
        tx.execute(&MARK_ABANDONED, &[Param::from(self.job), now]).await.map(|_| ())
    }
}
