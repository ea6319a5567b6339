//! Runtimes, one, a page of them, and those of one node.

use domain::{RuntimeName, TenantId};

use crate::error::StoreError;
use crate::runtimes::{Runtime, runtime};
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

impl Store {
    pub async fn runtime(&self, tenant: TenantId, name: &RuntimeName) -> Result<Option<Runtime>, StoreError> {
        self.read(Get { tenant, name: name.clone() }).await
    }

    /// By name, after `after`.
    pub async fn list_runtimes(
        &self,
        tenant: TenantId,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<Runtime>, StoreError> {
        self.read(List { tenant, after: after.unwrap_or_default(), limit }).await
    }

    /// All that this node drives, of every tenant.
    pub async fn runtimes_of_node(&self, node: &str) -> Result<Vec<Runtime>, StoreError> {
        self.read(OfNode { node: node.to_owned() }).await
    }

    /// What containers of this installation are labelled with.
    pub async fn instance(&self) -> Result<String, StoreError> {
        self.read(Instance).await
    }
}

struct Get {
    tenant: TenantId,
    name: RuntimeName,
}

const GET: Sql =
    Sql::both(&["select r.tenant, r.name, r.spec, r.env, r.node, r.status, r.container_id, r.current_image,
         r.endpoint, r.state_path, r.health, r.health_source, r.health_details, r.health_at, r.deleting, r.principal,
         r.created_at, r.updated_at, r.started_at, r.stopped_at, r.removed_at, r.last_op_at,
         (select o.kind from operations o where o.tenant = r.tenant and o.runtime = r.name and o.finished_at is null
          order by o.id limit 1)
     from runtimes r where r.tenant = $1 and r.name = $2"]);
const LIST: Sql =
    Sql::both(&["select r.tenant, r.name, r.spec, r.env, r.node, r.status, r.container_id, r.current_image,
         r.endpoint, r.state_path, r.health, r.health_source, r.health_details, r.health_at, r.deleting, r.principal,
         r.created_at, r.updated_at, r.started_at, r.stopped_at, r.removed_at, r.last_op_at,
         (select o.kind from operations o where o.tenant = r.tenant and o.runtime = r.name and o.finished_at is null
          order by o.id limit 1)
     from runtimes r where r.tenant = $1 and r.name > $2 order by r.name limit $3"]);
const OF_NODE: Sql = Sql::both(&["select r.tenant, r.name, r.spec, r.env, r.node, r.status, r.container_id,
         r.current_image, r.endpoint, r.state_path, r.health, r.health_source, r.health_details, r.health_at, r.deleting,
         r.principal, r.created_at, r.updated_at, r.started_at, r.stopped_at, r.removed_at, r.last_op_at,
         (select o.kind from operations o where o.tenant = r.tenant and o.runtime = r.name and o.finished_at is null
          order by o.id limit 1)
     from runtimes r where r.node = $1 order by r.tenant, r.name"]);
const INSTANCE: Sql = Sql::both(&["select instance from installation where id = 1"]);

/// Reads it within a transaction.
pub(super) async fn find(tx: &mut Tx<'_>, tenant: TenantId, name: &str) -> Result<Option<Runtime>, StoreError> {
    let row = tx.query_opt(&GET, &[Param::Int(tenant.0), Param::Text(name)]).await?;
    row.as_ref().map(runtime).transpose()
}

const LOCK: Sql = Sql::new(
    &["select name from runtimes where tenant = $1 and name = $2"],
    "select name from runtimes where tenant = $1 and name = $2 for update",
);

/// The same, held until the transaction ends.
pub(super) async fn lock(tx: &mut Tx<'_>, tenant: TenantId, name: &str) -> Result<Option<Runtime>, StoreError> {
    tx.query_opt(&LOCK, &[Param::Int(tenant.0), Param::Text(name)]).await?;
    find(tx, tenant, name).await
}

impl Operation for Get {
    type Output = Option<Runtime>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<Runtime>, StoreError> {
        find(tx, self.tenant, self.name.as_str()).await
    }
}

struct List {
    tenant: TenantId,
    after: String,
    limit: usize,
}

impl Operation for List {
    type Output = Vec<Runtime>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Runtime>, StoreError> {
        let params = [Param::Int(self.tenant.0), Param::Text(&self.after), Param::Int(self.limit as i64)];
        tx.query(&LIST, &params).await?.iter().map(runtime).collect()
    }
}

struct OfNode {
    node: String,
}

impl Operation for OfNode {
    type Output = Vec<Runtime>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Runtime>, StoreError> {
        of_node(tx, &self.node).await
    }
}

/// The same within a transaction.
pub(super) async fn of_node(tx: &mut Tx<'_>, node: &str) -> Result<Vec<Runtime>, StoreError> {
    tx.query(&OF_NODE, &[Param::Text(node)]).await?.iter().map(runtime).collect()
}

struct Instance;

impl Operation for Instance {
    type Output = String;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<String, StoreError> {
        let row = tx.query_opt(&INSTANCE, &[]).await?;
        row.ok_or_else(|| StoreError::unexpected("the installation has no name"))?.text(0)
    }
}

/// What it may take of the memory, held until the transaction ends; `None` where it is not declared.
pub(crate) async fn memory_of(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    name: &str,
) -> Result<Option<Option<i64>>, StoreError> {
    Ok(lock(tx, tenant, name).await?.map(|runtime| runtime.spec.memory_mb))
}
