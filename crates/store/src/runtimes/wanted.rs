//! Starts runtimes with the desired state `running` that are on no node. Each node starts its own runtimes; this covers
//! the others.

use domain::runtimes::{Desired, OperationKind, OperationSource};
use domain::{RuntimeName, TenantId};

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::runtimes::request::NewOperation;
use crate::runtimes::{codec, nodes};
use crate::store::Store;

impl Store {
    /// Requests the starts, on one node only: the first live node by name.
    pub async fn start_desired_runtimes(&self, node: &str) -> Result<(), StoreError> {
        for (tenant, name) in self.read(ListUnplacedDesired { node: node.to_owned() }).await? {
            let start = NewOperation {
                kind: OperationKind::Start,
                source: OperationSource::AutoReconcile,
                source_ref: Some("desired state is running and the runtime is on no node".into()),
                image: None,
                actor: "reconcile".into(),
                depth: 0,
                on: None,
            };
            self.request_operation(tenant, &name, start).await?;
        }
        Ok(())
    }
}

struct ListUnplacedDesired {
    node: String,
}

const NOWHERE: Sql = Sql::both(&["select r.tenant, r.name, r.spec, r.env from runtimes r
     where r.node is null and r.deleting = $1 and not exists (select 1 from operations o
         where o.tenant = r.tenant and o.runtime = r.name and o.finished_at is null)"]);

impl Operation for ListUnplacedDesired {
    type Output = Vec<(TenantId, RuntimeName)>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let now = tx.now();
        let nodes = nodes::all(tx).await?;
        if nodes.iter().find(|node| !node.is_lost(now)).is_none_or(|first| first.name != self.node) {
            return Ok(Vec::new());
        }
        let mut unplaced = Vec::new();
        for row in tx.query(&NOWHERE, &[Param::Bool(false)]).await? {
            let spec = codec::read(&row.text("spec")?, &row.text("env")?)?;
            if spec.desired == Some(Desired::Running) && spec.ttl_s.is_none() {
                unplaced.push((TenantId(row.int("tenant")?), RuntimeName::stored(&row.text("name")?)));
            }
        }
        Ok(unplaced)
    }
}
