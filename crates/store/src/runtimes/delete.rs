//! Deletes a runtime: at once if it has no container, otherwise when the operation that removes the container is done.
//! The operation log, the timeline and the state path remain.

use domain::{RuntimeName, TenantId};

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::timeline;
use crate::fleet::timeline::Entry;
use crate::runtimes::get;
use crate::store::Store;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuntimeDeleted {
    Deleted,
    /// The runtime has a container, or an operation is in flight. It is marked for deletion, and the container must be
    /// removed first.
    HasContainer,
    NotFound,
}

impl Store {
    /// Deletes a runtime, or marks it for deletion.
    pub async fn delete_runtime(
        &self,
        tenant: TenantId,
        name: &RuntimeName,
        actor: String,
    ) -> Result<RuntimeDeleted, StoreError> {
        self.write(DeleteRuntime { tenant, name: name.clone(), actor }).await
    }
}

struct DeleteRuntime {
    tenant: TenantId,
    name: RuntimeName,
    actor: String,
}

const MARK: Sql = Sql::both(&["update runtimes set deleting = $3 where tenant = $1 and name = $2"]);
const DELETE: Sql = Sql::both(&["delete from runtimes where tenant = $1 and name = $2"]);

impl Operation for DeleteRuntime {
    type Output = RuntimeDeleted;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<RuntimeDeleted, StoreError> {
        let Some(runtime) = get::lock(tx, self.tenant, self.name.as_str()).await? else {
            return Ok(RuntimeDeleted::NotFound);
        };
        let id = [Param::Int(self.tenant.0), Param::Text(self.name.as_str())];
        let deleted = if runtime.container_id.is_none() && runtime.in_flight.is_none() {
            tx.execute(&DELETE, &id).await?;
            RuntimeDeleted::Deleted
        } else {
            tx.execute(&MARK, &[id[0], id[1], Param::Bool(true)]).await?;
            RuntimeDeleted::HasContainer
        };
        let subject = self.name.subject();
        let event = if deleted == RuntimeDeleted::Deleted { "deleted" } else { "deletion_asked_for" };
        let entry = Entry {
            actor: Some(&self.actor),
            runtime: Some(self.name.as_str()),
            ..Entry::of_subject(self.tenant, &subject, event)
        };
        timeline::write(tx, &[entry]).await?;
        Ok(deleted)
    }
}
