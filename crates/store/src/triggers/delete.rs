//! Deletes a trigger with its pending outbox rows, cron slots, hook receipts and run records.

use domain::{TenantId, TriggerId};
use serde_json::json;

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::timeline;
use crate::fleet::timeline::Entry;
use crate::store::Store;
use crate::triggers::cache::tick;

impl Store {
    /// Deletes a trigger. Returns false if it does not exist.
    pub async fn delete_trigger(&self, tenant: TenantId, id: TriggerId, by: &str) -> Result<bool, StoreError> {
        self.write(DeleteTrigger { tenant, id, by: by.to_owned() }).await
    }
}

struct DeleteTrigger {
    tenant: TenantId,
    id: TriggerId,
    by: String,
}

const DELETE: Sql = Sql::both(&["delete from triggers where id = $1 and tenant = $2 returning name"]);
const DELETE_ROWS: Sql = Sql::both(&["delete from outbox where trigger_id = $1"]);
const DELETE_SLOTS: Sql = Sql::both(&["delete from cron_slots where trigger_id = $1"]);
const DELETE_RUNS: Sql = Sql::both(&["delete from trigger_runs where trigger_id = $1"]);
const DELETE_RECEIPTS: Sql = Sql::both(&["delete from hook_receipts where trigger_id = $1"]);

impl Operation for DeleteTrigger {
    type Output = bool;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let id = Param::Uuid(self.id.uuid());
        let deleted = tx.query_opt(&DELETE, &[id, Param::Int(self.tenant.0)]).await?;
        let Some(name) = deleted.map(|row| row.text("name")).transpose()? else { return Ok(false) };
        for sql in [&DELETE_ROWS, &DELETE_SLOTS, &DELETE_RECEIPTS, &DELETE_RUNS] {
            tx.execute(sql, &[id]).await?;
        }
        tick(tx).await?;
        let detail = json!({"trigger": name, "id": self.id.uuid()}).to_string();
        timeline::write(tx, &[Entry::by(self.tenant, &self.by, "trigger_deleted", detail)]).await?;
        Ok(true)
    }
}
