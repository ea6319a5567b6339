//! Creates a tenant.

use domain::limits::TENANTS;
use domain::{Name, TenantId};

use crate::access::tenants::find;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TenantCreated {
    Created(TenantId),
    Exists(TenantId),
    TooMany,
}

impl Store {
    pub async fn create_tenant(&self, name: Name) -> Result<TenantCreated, StoreError> {
        self.write(CreateTenant { name }).await
    }
}

struct CreateTenant {
    name: Name,
}

// The number of a deleted tenant is not used again.
const NEXT: Sql = Sql::new(
    &["select max(coalesce(max(id), 0), (select last_tenant from installation where id = 1)) + 1 as next_id,
           count(*) as tenants from tenants"],
    "select greatest(coalesce(max(id), 0), (select last_tenant from installation where id = 1)) + 1 as next_id,
         count(*) as tenants from tenants",
);
const INSERT: Sql = Sql::both(&["insert into tenants (id, name, created_at) values ($1, $2, $3)"]);

impl Operation for CreateTenant {
    type Output = TenantCreated;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<TenantCreated, StoreError> {
        tx.lock(&["windlass tenants"]).await?;
        if let Some(tenant) = find(tx, &self.name).await? {
            return Ok(TenantCreated::Exists(tenant));
        }
        let row = tx.query_opt(&NEXT, &[]).await?.ok_or_else(|| StoreError::unexpected("an aggregate has a row"))?;
        if row.int("tenants")? as usize >= TENANTS {
            return Ok(TenantCreated::TooMany);
        }
        let id = row.int("next_id")?;
        tx.execute(&INSERT, &[Param::Int(id), Param::Text(self.name.as_str()), Param::Time(tx.now())]).await?;
        Ok(TenantCreated::Created(TenantId(id)))
    }
}
