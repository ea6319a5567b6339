//! The workers of a tenant, newest first.

use domain::{TenantId, WorkerId};
use uuid::Uuid;

use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};
use crate::workers::Worker;

#[derive(Clone, Debug)]
pub struct ListedWorker {
    pub worker: Worker,
    /// Jobs it has claimed and not settled.
    pub claims: i64,
}

impl Store {
    /// Living workers, after `after` in the listing.
    pub async fn list_workers(
        &self,
        tenant: TenantId,
        after: Option<WorkerId>,
        limit: usize,
    ) -> Result<Vec<ListedWorker>, StoreError> {
        self.read(List { tenant, after, limit }).await
    }

    /// One of the tenant's workers, living or dead.
    pub async fn worker(&self, tenant: TenantId, id: WorkerId) -> Result<Option<Worker>, StoreError> {
        self.read(Get { tenant, id }).await
    }
}

struct Get {
    tenant: TenantId,
    id: WorkerId,
}

impl Operation for Get {
    type Output = Option<Worker>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<Worker>, StoreError> {
        Ok(super::load(tx, &[self.id]).await?.pop().filter(|worker| worker.tenant == self.tenant))
    }
}

struct List {
    tenant: TenantId,
    after: Option<WorkerId>,
    limit: usize,
}

const LIST: Sql = Sql::new(
    &["select w.id, w.tenant, w.name, w.queues, w.kinds, w.affinities, w.affinity, w.lease_ms, w.lease_until,
           w.draining, w.registered_at, w.last_claim_at, w.dead_at, s.since, s.beat_at,
           (select coalesce(sum(c.remaining), 0) from claims c where c.worker = w.id)
       from workers w join service s on s.id = 1
       where w.tenant = $1 and w.dead_at is null and w.id < $2 order by w.id desc limit $3"],
    "select w.id, w.tenant, w.name, w.queues, w.kinds, w.affinities, w.affinity, w.lease_ms, w.lease_until,
         w.draining, w.registered_at, w.last_claim_at, w.dead_at, s.since, s.beat_at,
         (select coalesce(sum(c.remaining), 0)::bigint from claims c where c.worker = w.id)
     from workers w join service s on s.id = 1
     where w.tenant = $1 and w.dead_at is null and w.id < $2 order by w.id desc limit $3",
);

impl Operation for List {
    type Output = Vec<ListedWorker>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<ListedWorker>, StoreError> {
        let after = self.after.map_or(Uuid::max(), WorkerId::uuid);
        let params = [Param::Int(self.tenant.0), Param::Uuid(after), Param::Int(self.limit as i64)];
        let rows = tx.query(&LIST, &params).await?;
        let read = |row| Ok(ListedWorker { worker: Worker::read(row)?, claims: row.int(15)? });
        rows.iter().map(read).collect()
    }
}
