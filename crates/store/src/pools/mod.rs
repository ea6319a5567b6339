//! Pools: what is declared, which node runs each, and what that node wrote down of it (R7).

pub mod backlog;
pub mod codec;
pub mod get;
pub(crate) mod left_alone;
pub mod put;
pub mod run;

use domain::pool::PoolSpec;
use domain::{Name, TenantId, Time};

use crate::error::StoreError;
use crate::tx::Row;
use crate::unread::pass_over;
use codec::PoolState;

#[derive(Clone, Debug)]
pub struct Pool {
    pub tenant: TenantId,
    pub name: Name,
    pub spec: PoolSpec,
    pub state: PoolState,
    /// Who runs it.
    pub node: Option<String>,
    pub lease_until: Option<Time>,
    pub principal: String,
    pub created_at: Time,
    pub updated_at: Time,
}

/// Reads the columns in the order in which every select here names them.
fn pool(row: &Row) -> Result<Pool, StoreError> {
    Ok(Pool {
        tenant: TenantId(row.int(0)?),
        name: Name::stored(&row.text(1)?),
        spec: codec::read(&row.text(2)?)?,
        state: crate::codec::from_json(&row.text(3)?)?,
        node: row.opt_text(4)?,
        lease_until: row.opt_time(5)?,
        principal: row.text(6)?,
        created_at: row.time(7)?,
        updated_at: row.time(8)?,
    })
}

/// The same where one that this program cannot read is left to a node that can.
fn readable(row: &Row) -> Option<Pool> {
    let what = || format!("pool {} of tenant {}", row.text(1).unwrap_or_default(), row.int(0).unwrap_or_default());
    pass_over(pool(row), what)
}
