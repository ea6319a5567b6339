//! One node at a time runs a pool: it takes it for a while, says that it lives, and writes down how the pool stands.

use std::collections::HashSet;

use domain::limits::POOL_LEASE_MS;
use domain::pool::Member;
use domain::{Name, TenantId};

use crate::codec::to_json;
use crate::error::StoreError;
use crate::pools::codec::PoolState;
use crate::pools::{Pool, readable};
use crate::runtimes::nodes::NodeOffer;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

impl Store {
    /// Takes pools that nobody runs and keeps those that this node runs, where it has the labels that they ask for and none
    /// of their runtimes is on another node. Gives all of them.
    pub async fn take_pools(&self, node: &str, offer: &NodeOffer) -> Result<Vec<Pool>, StoreError> {
        // Most installations have none: then nothing is written.
        if !self.read(Any).await? {
            return Ok(Vec::new());
        }
        self.write(Take { node: node.to_owned(), offer: offer.clone() }).await
    }

    /// Whether the pool is still this node's.
    pub async fn save_pool_state(
        &self,
        tenant: TenantId,
        name: &Name,
        node: &str,
        state: &PoolState,
    ) -> Result<bool, StoreError> {
        self.write(Save { tenant, name: name.clone(), node: node.to_owned(), state: to_json(state) }).await
    }

    /// Lets go of the pools of this node: another may take them at once.
    pub async fn leave_pools(&self, node: &str) -> Result<(), StoreError> {
        self.write(Leave { node: node.to_owned() }).await
    }
}

struct Any;

const ANY: Sql = Sql::both(&["select name from pools limit 1"]);

impl Operation for Any {
    type Output = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        Ok(tx.query_opt(&ANY, &[]).await?.is_some())
    }
}

struct Take {
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
const HOLD: Sql = Sql::both(&["update pools set node = $3, lease_until = $4 where tenant = $1 and name = $2"]);
const ELSEWHERE: Sql = Sql::both(&["select tenant, name from runtimes where node is not null and node <> $1"]);

impl Operation for Take {
    type Output = Vec<Pool>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Pool>, StoreError> {
        let now = tx.now();
        let rows = tx.query(&FREE, &[Param::Text(&self.node), Param::Time(now)]).await?;
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let elsewhere = tx.query(&ELSEWHERE, &[Param::Text(&self.node)]).await?;
        let elsewhere: HashSet<(i64, String)> =
            elsewhere.iter().map(|row| Ok((row.int(0)?, row.text(1)?))).collect::<Result<_, StoreError>>()?;
        let mut taken = Vec::with_capacity(rows.len());
        for row in &rows {
            let Some(mut pool) = readable(row) else { continue };
            let is_elsewhere = |member: &Member| elsewhere.contains(&(pool.tenant.0, member.runtime.to_string()));
            let fits = pool.spec.placement.fits(&self.offer.labels) && !pool.spec.members.iter().any(is_elsewhere);
            // A pool that is not for this node any more is let go.
            let (node, until) =
                if fits { (Some(self.node.as_str()), Some(now.plus_ms(POOL_LEASE_MS))) } else { (None, None) };
            if fits || pool.node.as_deref() == Some(self.node.as_str()) {
                let id = [Param::Int(pool.tenant.0), Param::Text(pool.name.as_str())];
                tx.execute(&HOLD, &[id[0], id[1], Param::text(node), Param::time(until)]).await?;
            }
            if fits {
                (pool.node, pool.lease_until) = (node.map(str::to_owned), until);
                taken.push(pool);
            }
        }
        Ok(taken)
    }
}

struct Save {
    tenant: TenantId,
    name: Name,
    node: String,
    state: String,
}

const SAVE: Sql = Sql::both(&["update pools set state = $4 where tenant = $1 and name = $2 and node = $3"]);

impl Operation for Save {
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

struct Leave {
    node: String,
}

const LEAVE: Sql = Sql::both(&["update pools set node = null, lease_until = null where node = $1"]);

impl Operation for Leave {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        tx.execute(&LEAVE, &[Param::Text(&self.node)]).await.map(|_| ())
    }
}
