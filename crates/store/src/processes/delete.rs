//! Takes a process back. Its jobs go on; how subjects stood with it is forgotten a part at a time by the scan.

use domain::{Name, TenantId};

use crate::effects::Effects;
use crate::error::StoreError;
use crate::store::Store;
use crate::subjects::standings;
use crate::tx::{Operation, Param, Sql, Tx};

impl Store {
    /// Whether there was one.
    pub async fn delete_process(&self, tenant: TenantId, name: Name) -> Result<bool, StoreError> {
        let found = self.write(DeleteProcess { tenant, name }).await?;
        self.announce(&Effects { scan: true, ..Effects::default() });
        Ok(found)
    }
}

struct DeleteProcess {
    tenant: TenantId,
    name: Name,
}

const DROP: Sql = Sql::both(&["update processes set dropped_at = $3, swept_to = ''
     where tenant = $1 and name = $2 and dropped_at is null"]);

impl Operation for DeleteProcess {
    type Output = bool;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        tx.lock(&[&standings::lock_name(self.tenant)]).await?;
        let params = [Param::Int(self.tenant.0), Param::Text(self.name.as_str()), Param::Time(tx.now())];
        Ok(tx.execute(&DROP, &params).await? > 0)
    }
}
