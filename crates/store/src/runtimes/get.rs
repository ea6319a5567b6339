//! Reads one runtime, a page of runtimes, or the runtimes of one node.

use domain::{RuntimeName, TenantId};

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::runtimes::{Runtime, runtime};
use crate::store::Store;

impl Store {
    pub async fn runtime(&self, tenant: TenantId, name: &RuntimeName) -> Result<Option<Runtime>, StoreError> {
        self.read(GetRuntime { tenant, name: name.clone() }).await
    }

    /// Returns up to `limit` runtimes ordered by name, starting after `after`.
    pub async fn list_runtimes(
        &self,
        tenant: TenantId,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<Runtime>, StoreError> {
        self.read(ListRuntimes { tenant, after: after.unwrap_or_default(), limit }).await
    }

    /// Returns all runtimes on this node, of every tenant.
    pub async fn runtimes_of_node(&self, node: &str) -> Result<Vec<Runtime>, StoreError> {
        self.read(ListRuntimesOfNode { node: node.to_owned() }).await
    }

    /// Returns the id of this installation, with which its containers are labelled.
    pub async fn instance(&self) -> Result<String, StoreError> {
        self.read(ReadInstance).await
    }
}

struct GetRuntime {
    tenant: TenantId,
    name: RuntimeName,
}

const GET: Sql =
    Sql::both(&["select r.tenant, r.name, r.spec, r.env, r.node, r.status, r.container_id, r.current_image,
         r.endpoint, r.state_path, r.health, r.health_source, r.health_details, r.health_at, r.deleting, r.principal,
         r.created_at, r.updated_at, r.started_at, r.stopped_at, r.removed_at, r.last_op_at,
         (select o.kind from operations o where o.tenant = r.tenant and o.runtime = r.name and o.finished_at is null
          order by o.id limit 1) as in_flight
     from runtimes r where r.tenant = $1 and r.name = $2"]);
const LIST: Sql =
    Sql::both(&["select r.tenant, r.name, r.spec, r.env, r.node, r.status, r.container_id, r.current_image,
         r.endpoint, r.state_path, r.health, r.health_source, r.health_details, r.health_at, r.deleting, r.principal,
         r.created_at, r.updated_at, r.started_at, r.stopped_at, r.removed_at, r.last_op_at,
         (select o.kind from operations o where o.tenant = r.tenant and o.runtime = r.name and o.finished_at is null
          order by o.id limit 1) as in_flight
     from runtimes r where r.tenant = $1 and r.name > $2 order by r.name limit $3"]);
const OF_NODE: Sql = Sql::both(&["select r.tenant, r.name, r.spec, r.env, r.node, r.status, r.container_id,
         r.current_image, r.endpoint, r.state_path, r.health, r.health_source, r.health_details, r.health_at, r.deleting,
         r.principal, r.created_at, r.updated_at, r.started_at, r.stopped_at, r.removed_at, r.last_op_at,
         (select o.kind from operations o where o.tenant = r.tenant and o.runtime = r.name and o.finished_at is null
          order by o.id limit 1) as in_flight
     from runtimes r where r.node = $1 order by r.tenant, r.name"]);
const INSTANCE: Sql = Sql::both(&["select instance from installation where id = 1"]);

/// Reads a runtime within a transaction.
pub(super) async fn find(tx: &mut Tx<'_>, tenant: TenantId, name: &str) -> Result<Option<Runtime>, StoreError> {
    let row = tx.query_opt(&GET, &[Param::Int(tenant.0), Param::Text(name)]).await?;
    row.as_ref().map(runtime).transpose()
}

const LOCK: Sql = Sql::new(
    &["select name from runtimes where tenant = $1 and name = $2"],
    "select name from runtimes where tenant = $1 and name = $2 for update",
);

/// Like [`find`], and locks the runtime until the transaction ends.
pub(super) async fn lock(tx: &mut Tx<'_>, tenant: TenantId, name: &str) -> Result<Option<Runtime>, StoreError> {
    tx.query_opt(&LOCK, &[Param::Int(tenant.0), Param::Text(name)]).await?;
    find(tx, tenant, name).await
}

impl Operation for GetRuntime {
    type Output = Option<Runtime>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<Runtime>, StoreError> {
        find(tx, self.tenant, self.name.as_str()).await
    }
}

struct ListRuntimes {
    tenant: TenantId,
    after: String,
    limit: usize,
}

impl Operation for ListRuntimes {
    type Output = Vec<Runtime>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Runtime>, StoreError> {
        let params = [Param::Int(self.tenant.0), Param::Text(&self.after), Param::Int(self.limit as i64)];
        tx.query(&LIST, &params).await?.iter().map(runtime).collect()
    }
}

struct ListRuntimesOfNode {
    node: String,
}

impl Operation for ListRuntimesOfNode {
    type Output = Vec<Runtime>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Runtime>, StoreError> {
        of_node(tx, &self.node).await
    }
}

/// Like [`Store::runtimes_of_node`], within a transaction.
pub(super) async fn of_node(tx: &mut Tx<'_>, node: &str) -> Result<Vec<Runtime>, StoreError> {
    tx.query(&OF_NODE, &[Param::Text(node)]).await?.iter().map(runtime).collect()
}

struct ReadInstance;

impl Operation for ReadInstance {
    type Output = String;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<String, StoreError> {
        let row = tx.query_opt(&INSTANCE, &[]).await?;
        row.ok_or_else(|| StoreError::unexpected("the installation row is missing"))?.text("instance")
    }
}

/// Returns the memory limit of a runtime and locks the runtime until the transaction ends. Returns `None` if the
/// runtime does not exist, and `Some(None)` if it has no limit.
pub(crate) async fn memory_of(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    name: &str,
) -> Result<Option<Option<i64>>, StoreError> {
    Ok(lock(tx, tenant, name).await?.map(|runtime| runtime.spec.memory_mb))
}
