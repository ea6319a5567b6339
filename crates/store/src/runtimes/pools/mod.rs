//! Pools: declarations, the lease of the node that runs each pool, and the state that this node records.

pub mod backlog;
pub mod codec;
pub mod get;
pub(crate) mod member_backoff;
pub mod put;
pub mod run;

use domain::runtimes::pool::PoolSpec;
use domain::{Name, TenantId, Time};

use crate::db::skip_unreadable::skip_unreadable;
use crate::db::tx::Row;
use crate::error::StoreError;
use codec::PoolState;

/// A declared pool with its state.
#[derive(Clone, Debug)]
pub struct Pool {
    pub tenant: TenantId,
    pub name: Name,
    pub spec: PoolSpec,
    pub state: PoolState,
    /// The node that runs it.
    pub node: Option<String>,
    pub lease_until: Option<Time>,
    pub principal: String,
    pub created_at: Time,
    pub updated_at: Time,
}

/// Reads a pool from the columns that every query of this module selects.
fn pool(row: &Row) -> Result<Pool, StoreError> {
    Ok(Pool {
        tenant: TenantId(row.int("tenant")?),
        name: Name::stored(&row.text("name")?),
        spec: codec::read(&row.text("spec")?)?,
        state: crate::db::codec::from_json(&row.text("state")?)?,
        node: row.opt_text("node")?,
        lease_until: row.opt_time("lease_until")?,
        principal: row.text("principal")?,
        created_at: row.time("created_at")?,
        updated_at: row.time("updated_at")?,
    })
}

/// Like [`pool`], but skips a pool that this version cannot decode. A newer node may run it.
fn readable(row: &Row) -> Option<Pool> {
    let what =
        || format!("pool {} of tenant {}", row.text("name").unwrap_or_default(), row.int("tenant").unwrap_or_default());
    skip_unreadable(pool(row), what)
}
