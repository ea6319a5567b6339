//! Registers workers. Each start gets a new id, so that a restarted worker cannot hide the claims of its previous
//! process.

use domain::{Label, Name, TenantId, WorkerId};

use crate::db::clock::new_uuid;
use crate::db::codec::to_json;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

#[derive(Clone, Debug)]
pub struct NewWorker {
    pub name: String,
    pub queues: Vec<Name>,
    pub kinds: Option<Vec<Name>>,
    pub affinities: Option<Vec<Label>>,
    pub lease_ms: i64,
}

impl Store {
    pub async fn register_worker(&self, tenant: TenantId, worker: NewWorker) -> Result<WorkerId, StoreError> {
        self.write(RegisterWorker { tenant, worker, node: None }).await
    }

    /// Registers a worker that is part of the process of this node. `release_node_workers` removes it when the node
    /// starts again after a crash.
    pub async fn register_node_worker(
        &self,
        tenant: TenantId,
        node: &str,
        worker: NewWorker,
    ) -> Result<WorkerId, StoreError> {
        self.write(RegisterWorker { tenant, worker, node: Some(node.to_owned()) }).await
    }
}

struct RegisterWorker {
    tenant: TenantId,
    worker: NewWorker,
    node: Option<String>,
}

const INSERT: Sql = Sql::both(&["insert into workers
         (id, tenant, name, queues, kinds, affinities, lease_ms, lease_until, draining, registered_at, node)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"]);

impl Operation for RegisterWorker {
    type Output = WorkerId;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<WorkerId, StoreError> {
        let now = tx.now();
        let id = WorkerId::new(new_uuid(now));
        let names = |names: &[Name]| to_json(&names.iter().map(Name::as_str).collect::<Vec<_>>());
        let queues = names(&self.worker.queues);
        let kinds = self.worker.kinds.as_deref().map(names);
        let affinities = self.worker.affinities.as_ref();
        let affinities = affinities.map(|labels| to_json(&labels.iter().map(Label::as_str).collect::<Vec<_>>()));
        let params = [
            Param::from(id),
            Param::Int(self.tenant.0),
            Param::Text(&self.worker.name),
            Param::Json(&queues),
            Param::json(kinds.as_deref()),
            Param::json(affinities.as_deref()),
            Param::Int(self.worker.lease_ms),
            Param::Time(now.plus_ms(self.worker.lease_ms)),
            Param::Bool(false),
            Param::Time(now),
            Param::text(self.node.as_deref()),
        ];
        tx.execute(&INSERT, &params).await?;
        Ok(id)
    }
}
