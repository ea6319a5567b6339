//! Tenants (X6): every row belongs to one. They are made on the machine.

pub mod create;
pub mod grant_db_role;
pub mod list;
pub mod quota;

use domain::{Name, TenantId};

use crate::error::StoreError;
use crate::tx::{Param, Sql, Tx};

const BY_NAME: Sql = Sql::both(&["select id from tenants where name = $1"]);

pub(crate) async fn find(tx: &mut Tx<'_>, name: &Name) -> Result<Option<TenantId>, StoreError> {
    let row = tx.query_opt(&BY_NAME, &[Param::Text(name.as_str())]).await?;
    row.map(|row| row.int(0).map(TenantId)).transpose()
}
