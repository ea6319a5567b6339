//! Reads one pool, or pages of pools.

use domain::{Name, RuntimeName, TenantId};

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::runtimes::pools::{Pool, pool};
use crate::store::Store;

impl Store {
    pub async fn pool(&self, tenant: TenantId, name: &Name) -> Result<Option<Pool>, StoreError> {
        self.read(GetPool { tenant, name: name.clone() }).await
    }

    /// Returns up to `limit` pools ordered by name, starting after `after`.
    pub async fn list_pools(
        &self,
        tenant: TenantId,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<Pool>, StoreError> {
        self.read(ListPools { tenant, after: after.unwrap_or_default(), limit }).await
    }
}

struct GetPool {
    tenant: TenantId,
    name: Name,
}

const GET: Sql = Sql::both(&["select tenant, name, spec, state, node, lease_until, principal, created_at, updated_at
     from pools where tenant = $1 and name = $2"]);
const LIST: Sql = Sql::both(&["select tenant, name, spec, state, node, lease_until, principal, created_at, updated_at
     from pools where tenant = $1 and name > $2 order by name limit $3"]);

const ALL: Sql = Sql::both(&["select tenant, name, spec, state, node, lease_until, principal, created_at, updated_at
     from pools where tenant = $1"]);

/// Returns all pools of a tenant, within a transaction. Their number is bounded by `POOLS_PER_TENANT`.
pub(crate) async fn all(tx: &mut Tx<'_>, tenant: TenantId) -> Result<Vec<Pool>, StoreError> {
    tx.query(&ALL, &[Param::Int(tenant.0)]).await?.iter().map(pool).collect()
}

/// Returns the pool of which a runtime is a member.
pub(crate) async fn of_runtime(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    runtime: &RuntimeName,
) -> Result<Option<Pool>, StoreError> {
    let has = |pool: &Pool| pool.spec.members.iter().any(|member| member.runtime == *runtime);
    Ok(all(tx, tenant).await?.into_iter().find(has))
}

impl Operation for GetPool {
    type Output = Option<Pool>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<Pool>, StoreError> {
        let row = tx.query_opt(&GET, &[Param::Int(self.tenant.0), Param::Text(self.name.as_str())]).await?;
        row.as_ref().map(pool).transpose()
    }
}

struct ListPools {
    tenant: TenantId,
    after: String,
    limit: usize,
}

impl Operation for ListPools {
    type Output = Vec<Pool>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Pool>, StoreError> {
        let params = [Param::Int(self.tenant.0), Param::Text(&self.after), Param::Int(self.limit as i64)];
        tx.query(&LIST, &params).await?.iter().map(pool).collect()
    }
}
