//! Takes a trigger away, with what it had still to start.

use domain::{TenantId, TriggerId};

use crate::error::StoreError;
use crate::store::Store;
use crate::triggers::cache::tick;
use crate::tx::{Operation, Param, Sql, Tx};

impl Store {
    /// Gives whether there was one.
    pub async fn delete_trigger(&self, tenant: TenantId, id: TriggerId) -> Result<bool, StoreError> {
        self.write(Delete { tenant, id }).await
    }
}

struct Delete {
    tenant: TenantId,
    id: TriggerId,
}

const DELETE: Sql = Sql::both(&["delete from triggers where id = $1 and tenant = $2"]);
const DELETE_ROWS: Sql = Sql::both(&["delete from outbox where trigger_id = $1"]);
const DELETE_SLOTS: Sql = Sql::both(&["delete from cron_slots where trigger_id = $1"]);
const DELETE_RUNS: Sql = Sql::both(&["delete from trigger_runs where trigger_id = $1"]);
const DELETE_RECEIPTS: Sql = Sql::both(&["delete from hook_receipts where trigger_id = $1"]);

impl Operation for Delete {
    type Output = bool;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let id = Param::Uuid(self.id.uuid());
        if tx.execute(&DELETE, &[id, Param::Int(self.tenant.0)]).await? == 0 {
            return Ok(false);
        }
        for sql in [&DELETE_ROWS, &DELETE_SLOTS, &DELETE_RECEIPTS, &DELETE_RUNS] {
            tx.execute(sql, &[id]).await?;
        }
        tick(tx).await?;
        Ok(true)
    }
}
