//! Deletes a process. Its unfinished jobs continue. The scan then deletes the process's rows in `standings` in batches.

use domain::{Name, TenantId};
use serde_json::json;

use crate::db::effects::Effects;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::subjects::eligibility;
use crate::fleet::timeline;
use crate::fleet::timeline::Entry;
use crate::store::Store;

impl Store {
    /// Returns true if the process existed.
    pub async fn delete_process(&self, tenant: TenantId, name: Name, by: &str) -> Result<bool, StoreError> {
        let found = self.write(DeleteProcess { tenant, name, by: by.to_owned() }).await?;
        self.announce(&Effects { scan: true, ..Effects::default() });
        Ok(found)
    }
}

struct DeleteProcess {
    tenant: TenantId,
    name: Name,
    by: String,
}

const MARK_DROPPED: Sql = Sql::both(&["update processes set dropped_at = $3, swept_to = ''
     where tenant = $1 and name = $2 and dropped_at is null"]);

impl Operation for DeleteProcess {
    type Output = bool;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        tx.lock(&[&eligibility::lock_name(self.tenant)]).await?;
        let params = [Param::Int(self.tenant.0), Param::Text(self.name.as_str()), Param::Time(tx.now())];
        let found = tx.execute(&MARK_DROPPED, &params).await? > 0;
        if found {
            let detail = json!({"process": self.name.as_str()}).to_string();
            timeline::write(tx, &[Entry::by(self.tenant, &self.by, "process_deleted", detail)]).await?;
        }
        Ok(found)
    }
}
