//! Lists the workers of a tenant, newest first, and the workers of the built-in tenant that serve it too.

use std::collections::BTreeSet;

use domain::limits::{QUEUE_SNAPSHOT_WORKERS, TOKENS_PER_TENANT};
use domain::{Name, TenantId, WorkerId};
use uuid::Uuid;

use crate::access::tokens;
use crate::db::tx::{Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::queue::workers::Worker;
use crate::store::Store;

#[derive(Clone, Debug)]
pub struct ListedWorker {
    pub worker: Worker,
    /// Jobs that it has claimed and not settled.
    pub claims: i64,
}

impl ListedWorker {
    fn read(row: &Row) -> Result<Self, StoreError> {
        Ok(Self { worker: Worker::read(row)?, claims: row.int("claims")? })
    }
}

impl Store {
    /// Returns the live workers that follow `after` in the listing.
    pub async fn list_workers(
        &self,
        tenant: TenantId,
        after: Option<WorkerId>,
        limit: usize,
    ) -> Result<Vec<ListedWorker>, StoreError> {
        self.read(ListWorkers { tenant, after, limit }).await
    }

    /// Returns the queues in which a live worker of the built-in tenant claims this tenant's jobs.
    pub async fn queues_served_for(&self, tenant: TenantId) -> Result<BTreeSet<Name>, StoreError> {
        self.read(ListServedQueues { tenant }).await
    }

    /// Returns one of the tenant's workers, live or dead.
    pub async fn worker(&self, tenant: TenantId, id: WorkerId) -> Result<Option<Worker>, StoreError> {
        self.read(FindWorker { tenant, id }).await
    }
}

struct FindWorker {
    tenant: TenantId,
    id: WorkerId,
}

impl Operation for FindWorker {
    type Output = Option<Worker>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<Worker>, StoreError> {
        Ok(super::load(tx, &[self.id]).await?.pop().filter(|worker| worker.tenant == self.tenant))
    }
}

struct ListWorkers {
    tenant: TenantId,
    after: Option<WorkerId>,
    limit: usize,
}

const LIST: Sql = Sql::new(
    &["select w.id, w.tenant, w.name, w.queues, w.kinds, w.affinities, w.affinity, w.lease_ms, w.lease_until,
           w.draining, w.registered_at, w.last_claim_at, w.dead_at, w.node, s.since, s.beat_at,
           (select coalesce(sum(c.remaining), 0) from claims c where c.worker = w.id) as claims
       from workers w join service s on s.id = 1
       where w.tenant = $1 and w.dead_at is null and w.id < $2 order by w.id desc limit $3"],
    "select w.id, w.tenant, w.name, w.queues, w.kinds, w.affinities, w.affinity, w.lease_ms, w.lease_until,
         w.draining, w.registered_at, w.last_claim_at, w.dead_at, w.node, s.since, s.beat_at,
         (select coalesce(sum(c.remaining), 0)::bigint from claims c where c.worker = w.id) as claims
     from workers w join service s on s.id = 1
     where w.tenant = $1 and w.dead_at is null and w.id < $2 order by w.id desc limit $3",
);

impl Operation for ListWorkers {
    type Output = Vec<ListedWorker>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<ListedWorker>, StoreError> {
        let after = self.after.map_or(Uuid::max(), WorkerId::uuid);
        let params = [Param::Int(self.tenant.0), Param::Uuid(after), Param::Int(self.limit as i64)];
        tx.query(&LIST, &params).await?.iter().map(ListedWorker::read).collect()
    }
}

struct ListServedQueues {
    tenant: TenantId,
}

impl Operation for ListServedQueues {
    type Output = BTreeSet<Name>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<BTreeSet<Name>, StoreError> {
        let serving = serving(tx, self.tenant).await?;
        Ok(serving.into_iter().flat_map(|listed| listed.worker.queues).collect())
    }
}

const SERVING_TOKENS: Sql =
    Sql::both(&["select t.id, t.tenant, n.name as tenant_name, t.name, t.role, t.rights, t.queues, t.serves,
         t.parent, t.created_by, t.created_at, t.expires_at, t.revoked_at, t.revoked_by, t.used_at
     from tokens t join tenants n on n.id = t.tenant
     where t.tenant = $1 and t.serves is not null and t.revoked_at is null
         and (t.expires_at is null or t.expires_at > $2) limit $3"]);

/// Returns the workers of the built-in tenant that claim this tenant's jobs.
///
/// A worker's token is not stored. A worker counts if some token that serves the tenant allows all of its queues.
pub(crate) async fn serving(tx: &mut Tx<'_>, tenant: TenantId) -> Result<Vec<ListedWorker>, StoreError> {
    if tenant == TenantId::SYSTEM {
        return Ok(Vec::new());
    }
    let (now, system) = (tx.now(), Param::Int(TenantId::SYSTEM.0));
    let rows = tx.query(&SERVING_TOKENS, &[system, Param::Time(now), Param::Int(TOKENS_PER_TENANT as i64)]).await?;
    let readable = |row| {
        let token = tokens::read(row);
        token.inspect_err(|error| tracing::warn!(%error, "cannot decode a token with `serves`; ignoring it")).ok()
    };
    let mut tokens: Vec<_> = rows.iter().filter_map(readable).collect();
    tokens.retain(|token| token.serves.as_ref().is_some_and(|serves| serves.includes(tenant)));
    if tokens.is_empty() {
        return Ok(Vec::new());
    }
    let params = [system, Param::Uuid(Uuid::max()), Param::Int(QUEUE_SNAPSHOT_WORKERS as i64)];
    let rows = tx.query_all_tenants(&LIST, &params).await?;
    let mut workers = rows.iter().map(ListedWorker::read).collect::<Result<Vec<_>, _>>()?;
    workers.retain(|ListedWorker { worker, .. }| {
        let allows = |token: &tokens::Token| worker.queues.iter().all(|queue| token.access.reaches(queue));
        worker.is_alive(now) && !worker.draining && tokens.iter().any(allows)
    });
    Ok(workers)
}
