//! Lists and looks up tenants.

use domain::{Name, TenantId, Time};

use crate::db::tx::{Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    pub id: TenantId,
    pub name: Name,
    pub created_at: Time,
}

impl Store {
    /// Returns tenants by name, after `after`. Only for local administration and the built-in tenant.
    pub async fn list_tenants(&self, after: Option<Name>, limit: usize) -> Result<Vec<Tenant>, StoreError> {
        self.read(ListTenants { only: None, after, limit }).await
    }

    pub async fn tenant(&self, id: TenantId) -> Result<Option<Tenant>, StoreError> {
        Ok(self.read(ListTenants { only: Some(id), after: None, limit: 1 }).await?.pop())
    }

    pub async fn tenant_named(&self, name: &Name) -> Result<Option<TenantId>, StoreError> {
        self.read(FindTenant { name: name.clone() }).await
    }
}

struct ListTenants {
    only: Option<TenantId>,
    after: Option<Name>,
    limit: usize,
}

const LIST: Sql = Sql::both(&["select id, name, created_at from tenants
     where name > $1 and id = coalesce($2, id) order by name limit $3"]);

impl Operation for ListTenants {
    type Output = Vec<Tenant>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Tenant>, StoreError> {
        let after = self.after.as_ref().map_or("", Name::as_str);
        let only = Param::int(self.only.map(|tenant| tenant.0));
        let rows = tx.query(&LIST, &[Param::Text(after), only, Param::Int(self.limit as i64)]).await?;
        rows.iter().map(read).collect()
    }
}

fn read(row: &Row) -> Result<Tenant, StoreError> {
    Ok(Tenant {
        id: TenantId(row.int("id")?),
        name: Name::stored(&row.text("name")?),
        created_at: row.time("created_at")?,
    })
}

struct FindTenant {
    name: Name,
}

impl Operation for FindTenant {
    type Output = Option<TenantId>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<TenantId>, StoreError> {
        super::find(tx, &self.name).await
    }
}
