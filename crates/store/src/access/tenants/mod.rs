//! Tenants and their quotas. Every row belongs to one tenant. Only a local administrator can create tenants.

pub mod create;
pub mod delete;
pub mod grant_db_role;
pub mod list;
pub mod quota;

use domain::{Name, TenantId};

use crate::db::tx::{Param, Sql, Tx};
use crate::error::StoreError;

const BY_NAME: Sql = Sql::both(&["select id from tenants where name = $1"]);

pub(crate) async fn find(tx: &mut Tx<'_>, name: &Name) -> Result<Option<TenantId>, StoreError> {
    let row = tx.query_opt(&BY_NAME, &[Param::Text(name.as_str())]).await?;
    row.map(|row| row.int("id").map(TenantId)).transpose()
}
