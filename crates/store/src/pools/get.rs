//! Pools, one and a page of them.

use domain::{Name, TenantId};

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
