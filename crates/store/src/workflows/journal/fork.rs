//! Forks a job: creates a new job with the same settings that starts with the part of the journal before one entry.
//! Only resolved entries are copied. Their events are not published again. The cancel of the old job is not copied.

use domain::workflows::journal::CANCEL_KEY;
use domain::{JobId, Label, TenantId};

use crate::access::caller::Caller;
use crate::db::effects::Effects;
use crate::db::tx::{Column, Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::enqueue::{Accepted, EnqueueBatch, EnqueueReply, EnqueueRequest, Idempotency};
use crate::queue::retry;
use crate::store::Store;
use crate::workflows::journal::save::MARK;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Forked {
    /// The new job. `existing`: an earlier request with the same idempotency key created it.
    Created(Accepted),
    /// The journal has no entry with this key.
    NoSuchKey,
    /// The idempotency key was used with another body.
    KeyReused,
    NotFound,
}

impl Store {
    /// Creates a copy of a job whose journal has the resolved entries before `from`, with `payload` in place of the old
    /// one if given.
    pub async fn fork_job(
        &self,
        tenant: TenantId,
        job: JobId,
        from: Label,
        payload: Option<Box<str>>,
        by: impl Into<Caller>,
        idempotency: Option<Idempotency>,
    ) -> Result<Forked, StoreError> {
        let by = by.into();
        let Some(old) = self.job(tenant, job).await? else { return Ok(Forked::NotFound) };
        let copy = retry::copy(&old, payload, &by);
        let lane = self.lane_ids(std::slice::from_ref(&old.lane)).await?;
        let request = EnqueueRequest::new(tenant, vec![copy], lane).with_idempotency(idempotency);
        let forked = self.write(ForkJob { tenant, old: job, from, enqueue: EnqueueBatch::one(request) }).await?;
        if let Forked::Created(created) = &forked
            && !created.existing
        {
            self.announce(&Effects { ready: [(tenant, created.queue.clone())].into(), ..Effects::default() });
        }
        Ok(forked)
    }
}

struct ForkJob {
    tenant: TenantId,
    old: JobId,
    from: Label,
    enqueue: EnqueueBatch,
}

// The lock orders the copy with writes to the journal.
const LOCK: Sql = Sql::new(
    &["select 1 from journals where job = $1 and tenant = $2"],
    "select 1 from journals where job = $1 and tenant = $2 for share",
);
const FROM: Sql = Sql::both(&["select position from journal_entries where job = $1 and key = $2 and tenant = $3"]);
const COPY: Sql =
    Sql::both(&["insert into journal_entries (job, position, tenant, key, op, seq, epoch, hash, attempt,
         attempts, result, error, bytes, duration_ms, resolved_at, input, created_at)
     select $1, row_number() over (order by position), tenant, key, op, row_number() over (order by seq), 0, hash,
         attempt, attempts, result, error, bytes, duration_ms, resolved_at, input, created_at
     from journal_entries where job = $2 and position < $3 and seq is not null and key <> $4"]);
const HEAD: Sql = Sql::both(&["insert into journals (job, tenant, entries, resolved, bytes)
     select $1, tenant, count(*), count(*), sum(bytes) from journal_entries where job = $1 group by tenant"]);

impl Operation for ForkJob {
    type Output = Forked;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Forked, StoreError> {
        let tenant = Param::Int(self.tenant.0);
        tx.query(&LOCK, &[Param::from(self.old), tenant]).await?;
        let from = tx.query_opt(&FROM, &[Param::from(self.old), Param::Text(self.from.as_str()), tenant]).await?;
        let Some(from) = from else { return Ok(Forked::NoSuchKey) };
        let from = from.int("position")?;
        let created = match self.enqueue.run(tx).await?.pop() {
            Some(EnqueueReply::Accepted(mut jobs)) => jobs.pop(),
            Some(EnqueueReply::KeyReused) => return Ok(Forked::KeyReused),
            None => None,
        };
        let created = created.ok_or_else(|| StoreError::unexpected("a fork made no job"))?;
        if created.existing {
            return Ok(Forked::Created(created));
        }
        let params = [Param::from(created.id), Param::from(self.old), Param::Int(from), Param::Text(CANCEL_KEY)];
        let copied = tx.execute(&COPY, &params).await?;
        if copied > 0 {
            tx.execute(&HEAD, &[Param::from(created.id)]).await?;
            // The row of the job is written with the commit, before this statement.
            tx.defer(&MARK, &[Column::jobs([created.id])], &[]).await?;
        }
        Ok(Forked::Created(created))
    }
}
