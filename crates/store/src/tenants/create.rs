//! Makes a tenant.

use domain::limits::TENANTS;
use domain::{Name, TenantId};

use crate::error::StoreError;
use crate::store::Store;
use crate::tenants::find;
use crate::tx::{Operation, Param, Sql, Tx};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TenantCreated {
    Created(TenantId),
    Exists(TenantId),
    TooMany,
}

impl Store {
    pub async fn create_tenant(&self, name: Name) -> Result<TenantCreated, StoreError> {
        self.write(Create { name }).await
    }
}

struct Create {
    name: Name,
}

const NEXT: Sql = Sql::both(&["select coalesce(max(id), 0) + 1, count(*) from tenants"]);
const INSERT: Sql = Sql::both(&["insert into tenants (id, name, created_at) values ($1, $2, $3)"]);

impl Operation for Create {
    type Output = TenantCreated;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<TenantCreated, StoreError> {
        tx.lock(&["windlass tenants"]).await?;
        if let Some(tenant) = find(tx, &self.name).await? {
            return Ok(TenantCreated::Exists(tenant));
        }
        let row = tx.query_opt(&NEXT, &[]).await?.ok_or_else(|| StoreError::unexpected("an aggregate has a row"))?;
        if row.int(1)? as usize >= TENANTS {
            return Ok(TenantCreated::TooMany);
        }
        let id = row.int(0)?;
        tx.execute(&INSERT, &[Param::Int(id), Param::Text(self.name.as_str()), Param::Time(tx.now())]).await?;
        Ok(TenantCreated::Created(TenantId(id)))
    }
}
