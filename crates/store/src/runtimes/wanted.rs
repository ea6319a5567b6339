//! Starts what someone wants to run and no node has been asked to: each node watches its own, and these have none.

use domain::runtime::{Desired, OperationKind, OperationSource};
use domain::{RuntimeName, TenantId};

use crate::error::StoreError;
use crate::runtimes::request::NewOperation;
use crate::runtimes::{codec, nodes};
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

impl Store {
    /// One node does this for all: the first by name that lives.
    pub async fn start_what_is_wanted(&self, node: &str) -> Result<(), StoreError> {
        for (tenant, name) in self.read(Wanted { node: node.to_owned() }).await? {
            let start = NewOperation {
                kind: OperationKind::Start,
                source: OperationSource::AutoReconcile,
                source_ref: Some("it is wanted and on no node".into()),
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

struct Wanted {
    node: String,
}

const NOWHERE: Sql = Sql::both(&["select r.tenant, r.name, r.spec, r.env from runtimes r
     where r.node is null and r.deleting = $1 and not exists (select 1 from operations o
         where o.tenant = r.tenant and o.runtime = r.name and o.finished_at is null)"]);

impl Operation for Wanted {
    type Output = Vec<(TenantId, RuntimeName)>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let now = tx.now();
        let nodes = nodes::all(tx).await?;
        if nodes.iter().find(|node| !node.is_lost(now)).is_none_or(|first| first.name != self.node) {
            return Ok(Vec::new());
        }
        let mut wanted = Vec::new();
        for row in tx.query(&NOWHERE, &[Param::Bool(false)]).await? {
            let spec = codec::read(&row.text(2)?, &row.text(3)?)?;
            if spec.desired == Some(Desired::Running) && spec.ttl_s.is_none() {
                wanted.push((TenantId(row.int(0)?), RuntimeName::stored(&row.text(1)?)));
            }
        }
        Ok(wanted)
    }
}
