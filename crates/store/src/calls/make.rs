//! Makes the job of a call together with the note that somebody waits for it, and takes that note back.

use domain::{JobId, TenantId};

use crate::effects::Effects;
use crate::error::StoreError;
use crate::jobs::enqueue::{Accepted, EnqueueBatch, EnqueueReply, EnqueueRequest, NewJob};
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

impl Store {
    /// Makes the job and notes that somebody waits for it, for `wait_ms` from now.
    pub async fn make_call(&self, tenant: TenantId, mut job: NewJob, wait_ms: i64) -> Result<Accepted, StoreError> {
        self.seal_webhooks(tenant, std::slice::from_mut(&mut job)).await?;
        let lanes = self.lane_ids(&[job.lane(tenant)]).await?;
        let enqueue = EnqueueBatch::one(EnqueueRequest::new(tenant, vec![job], lanes));
        let made = self.write(Make { tenant, enqueue, wait_ms }).await?;
        self.announce(&Effects { ready: [(tenant, made.queue.clone())].into(), ..Effects::default() });
        Ok(made)
    }

    /// The caller has its answer, or has been told that there is none.
    pub async fn end_call(&self, job: JobId) -> Result<(), StoreError> {
        self.write(End { job }).await
    }

    /// The caller went away. What its job answers is kept.
    pub async fn abandon_call(&self, job: JobId) -> Result<(), StoreError> {
        self.write(Abandon { job }).await
    }
}

struct Make {
    tenant: TenantId,
    enqueue: EnqueueBatch,
    wait_ms: i64,
}

const WAITS: Sql = Sql::both(&["insert into calls (job, tenant, called_at, until) values ($1, $2, $3, $4)"]);
const ANSWERED: Sql = Sql::both(&["delete from calls where job = $1"]);
const GONE: Sql = Sql::both(&["update calls set gone_at = $2 where job = $1"]);

impl Operation for Make {
    type Output = Accepted;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Accepted, StoreError> {
        let made = match self.enqueue.run(tx).await?.pop() {
            Some(EnqueueReply::Accepted(mut jobs)) => jobs.pop(),
            _ => None,
        };
        let made = made.ok_or_else(|| StoreError::unexpected("a call made no job"))?;
        let now = tx.now();
        let until = Param::Time(now.plus_ms(self.wait_ms));
        tx.execute(&WAITS, &[Param::from(made.id), Param::Int(self.tenant.0), Param::Time(now), until]).await?;
        Ok(made)
    }
}

struct End {
    job: JobId,
}

impl Operation for End {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        tx.execute(&ANSWERED, &[Param::from(self.job)]).await.map(|_| ())
    }
}

struct Abandon {
    job: JobId,
}

impl Operation for Abandon {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let now = Param::Time(tx.now());
        tx.execute(&GONE, &[Param::from(self.job), now]).await.map(|_| ())
    }
}
