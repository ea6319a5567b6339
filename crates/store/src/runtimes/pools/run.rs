//! Pool leases. One node at a time runs a pool: it leases the pool, renews the lease, and records the pool's state.

use std::collections::HashSet;

use domain::limits::POOL_LEASE_MS;
use domain::runtimes::pool::Member;
use domain::{Name, TenantId};

use crate::db::codec::to_json;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::runtimes::nodes::NodeOffer;
use crate::runtimes::pools::codec::PoolState;
use crate::runtimes::pools::{Pool, readable};
use crate::store::Store;

impl Store {
    /// Leases the pools that no node runs and renews the leases of this node. A pool qualifies if the node has its
    /// labels and none of its runtimes is on another node; the lease of a pool that no longer qualifies is released.
    /// Returns all pools that this node now runs.
    pub async fn lease_pools(&self, node: &str, offer: &NodeOffer) -> Result<Vec<Pool>, StoreError> {
        // Most installations have no pools. The read avoids a write transaction.
        if !self.read(HasPools).await? {
            return Ok(Vec::new());
        }
        self.write(LeasePools { node: node.to_owned(), offer: offer.clone() }).await
    }

    /// Stores the state of a pool. Returns false if this node does not run the pool any more.
    pub async fn save_pool_state(
        &self,
        tenant: TenantId,
        name: &Name,
        node: &str,
        state: &PoolState,
    ) -> Result<bool, StoreError> {
        self.write(SavePoolState { tenant, name: name.clone(), node: node.to_owned(), state: to_json(state) }).await
    }

    /// Releases all pool leases of this node, so that another node can take them at once.
    pub async fn release_pools(&self, node: &str) -> Result<(), StoreError> {
        self.write(ReleasePools { node: node.to_owned() }).await
    }
}

struct HasPools;

const HAS_ANY: Sql = Sql::both(&["select name from pools limit 1"]);

impl Operation for HasPools {
    type Output = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        Ok(tx.query_opt(&HAS_ANY, &[]).await?.is_some())
    }
}

struct LeasePools {
    node: String,
    offer: NodeOffer,
}

const FREE: Sql = Sql::new(
    &["select tenant, name, spec, state, node, lease_until, principal, created_at, updated_at from pools
       where node = $1 or node is null or lease_until is null or lease_until < $2"],
    "select tenant, name, spec, state, node, lease_until, principal, created_at, updated_at from pools
     where node = $1 or node is null or lease_until is null or lease_until < $2
     order by tenant, name for update skip locked",
);
const SET_LEASE: Sql = Sql::both(&["update pools set node = $3, lease_until = $4 where tenant = $1 and name = $2"]);
const ELSEWHERE: Sql = Sql::both(&["select tenant, name from runtimes where node is not null and node <> $1"]);

impl Operation for LeasePools {
    type Output = Vec<Pool>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Pool>, StoreError> {
        let now = tx.now();
        let rows = tx.query(&FREE, &[Param::Text(&self.node), Param::Time(now)]).await?;
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let elsewhere = tx.query(&ELSEWHERE, &[Param::Text(&self.node)]).await?;
        let elsewhere: HashSet<(i64, String)> = elsewhere
            .iter()
            .map(|row| Ok((row.int("tenant")?, row.text("name")?)))
            .collect::<Result<_, StoreError>>()?;
        let mut leased = Vec::with_capacity(rows.len());
        for row in &rows {
            let Some(mut pool) = readable(row) else { continue };
            let is_elsewhere = |member: &Member| elsewhere.contains(&(pool.tenant.0, member.runtime.to_string()));
            let fits = pool.spec.placement.fits(&self.offer.labels) && !pool.spec.members.iter().any(is_elsewhere);
            // A pool that no longer qualifies is released.
            let (node, until) =
                if fits { (Some(self.node.as_str()), Some(now.plus_ms(POOL_LEASE_MS))) } else { (None, None) };
            if fits || pool.node.as_deref() == Some(self.node.as_str()) {
                let id = [Param::Int(pool.tenant.0), Param::Text(pool.name.as_str())];
                tx.execute(&SET_LEASE, &[id[0], id[1], Param::text(node), Param::time(until)]).await?;
            }
            if fits {
                (pool.node, pool.lease_until) = (node.map(str::to_owned), until);
                leased.push(pool);
            }
        }
        Ok(leased)
    }
}

struct SavePoolState {
    tenant: TenantId,
    name: Name,
    node: String,
    state: String,
}

const SAVE: Sql = Sql::both(&["update pools set state = $4 where tenant = $1 and name = $2 and node = $3"]);

impl Operation for SavePoolState {
    type Output = bool;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let params = [
            Param::Int(self.tenant.0),
            Param::Text(self.name.as_str()),
            Param::Text(&self.node),
            Param::Json(&self.state),
        ];
        Ok(tx.execute(&SAVE, &params).await? > 0)
    }
}

struct ReleasePools {
    node: String,
}

const RELEASE: Sql = Sql::both(&["update pools set node = null, lease_until = null where node = $1"]);

impl Operation for ReleasePools {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        tx.execute(&RELEASE, &[Param::Text(&self.node)]).await.map(|_| ())
    }
}
