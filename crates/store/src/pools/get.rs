//! Pools, one and a page of them.

use domain::{Name, RuntimeName, TenantId};

use crate::error::StoreError;
use crate::pools::{Pool, pool};
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

impl Store {
    pub async fn pool(&self, tenant: TenantId, name: &Name) -> Result<Option<Pool>, StoreError> {
        self.read(Get { tenant, name: name.clone() }).await
    }

    /// By name, after `after`.
    pub async fn list_pools(
        &self,
        tenant: TenantId,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<Pool>, StoreError> {
        self.read(List { tenant, after: after.unwrap_or_default(), limit }).await
    }
}

struct Get {
    tenant: TenantId,
    name: Name,
}

const GET: Sql = Sql::both(&["select tenant, name, spec, state, node, lease_until, principal, created_at, updated_at
     from pools where tenant = $1 and name = $2"]);
const LIST: Sql = Sql::both(&["select tenant, name, spec, state, node, lease_until, principal, created_at, updated_at
     from pools where tenant = $1 and name > $2 order by name limit $3"]);

const ALL: Sql = Sql::both(&["select tenant, name, spec, state, node, lease_until, principal, created_at, updated_at
     from pools where tenant = $1"]);

/// All of a tenant's, within a transaction. There are few.
pub(crate) async fn all(tx: &mut Tx<'_>, tenant: TenantId) -> Result<Vec<Pool>, StoreError> {
    tx.query(&ALL, &[Param::Int(tenant.0)]).await?.iter().map(pool).collect()
}

/// The pool that a runtime is a member of.
pub(crate) async fn of_runtime(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    runtime: &RuntimeName,
) -> Result<Option<Pool>, StoreError> {
    let has = |pool: &Pool| pool.spec.members.iter().any(|member| member.runtime == *runtime);
    Ok(all(tx, tenant).await?.into_iter().find(has))
}

impl Operation for Get {
    type Output = Option<Pool>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<Pool>, StoreError> {
        let row = tx.query_opt(&GET, &[Param::Int(self.tenant.0), Param::Text(self.name.as_str())]).await?;
        row.as_ref().map(pool).transpose()
    }
}

struct List {
    tenant: TenantId,
    after: String,
    limit: usize,
}

impl Operation for List {
    type Output = Vec<Pool>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Pool>, StoreError> {
        let params = [Param::Int(self.tenant.0), Param::Text(&self.after), Param::Int(self.limit as i64)];
        tx.query(&LIST, &params).await?.iter().map(pool).collect()
    }
}
