//! One node at a time runs a pool: it takes it for a while, says that it lives, and writes down how the pool stands.

use domain::limits::POOL_LEASE_MS;
use domain::{Name, TenantId};

use crate::codec::to_json;
use crate::error::StoreError;
use crate::pools::codec::PoolState;
use crate::pools::{Pool, pool};
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

impl Store {
    /// Takes pools that nobody runs and keeps those that this node runs. Gives all of them.
    pub async fn take_pools(&self, node: &str) -> Result<Vec<Pool>, StoreError> {
        // Most installations have none: then nothing is written.
        if !self.read(Any).await? {
            return Ok(Vec::new());
        }
        self.write(Take { node: node.to_owned() }).await
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
}

const TAKE: Sql = Sql::both(&["update pools set node = $1, lease_until = $3
     where node = $1 or node is null or lease_until is null or lease_until < $2
     returning tenant, name, spec, state, node, lease_until, principal, created_at, updated_at"]);

impl Operation for Take {
    type Output = Vec<Pool>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Pool>, StoreError> {
        let now = tx.now();
        let params = [Param::Text(&self.node), Param::Time(now), Param::Time(now.plus_ms(POOL_LEASE_MS))];
        tx.query(&TAKE, &params).await?.iter().map(pool).collect()
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
