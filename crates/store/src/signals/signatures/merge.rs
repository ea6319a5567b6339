//! Merges two signatures that describe the same cause.

use domain::TenantId;
use uuid::Uuid;

use super::Signature;
use super::get::get;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

impl Store {
    /// Moves the failure groups and samples of `from` to `into` and deletes `from`. Returns `into` after the merge;
    /// `None` if either does not exist.
    pub async fn merge_signatures(
        &self,
        tenant: TenantId,
        from: Uuid,
        into: Uuid,
    ) -> Result<Option<Signature>, StoreError> {
        let merged = self.write(MergeSignatures { tenant, from, into }).await?;
        self.signature_cache().invalidate(&tenant);
        Ok(merged)
    }
}

struct MergeSignatures {
    tenant: TenantId,
    from: Uuid,
    into: Uuid,
}

const MOVE: Sql = Sql::both(&["update failure_groups set signature = $3 where tenant = $1 and signature = $2"]);
const ADD: Sql = Sql::both(&["update signatures set samples = samples + $2, version = version + 1, updated_at = $3
     where id = $1"]);
const DELETE: Sql = Sql::both(&["delete from signatures where tenant = $1 and id = $2"]);

impl Operation for MergeSignatures {
    type Output = Option<Signature>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<Signature>, StoreError> {
        let from = get(tx, self.tenant, self.from).await?;
        let into = get(tx, self.tenant, self.into).await?;
        let (Some(from), Some(_)) = (from, into) else { return Ok(None) };
        if self.from != self.into {
            let tenant = Param::Int(self.tenant.0);
            tx.execute(&MOVE, &[tenant, Param::Uuid(self.from), Param::Uuid(self.into)]).await?;
            let now = tx.now();
            tx.execute(&ADD, &[Param::Uuid(self.into), Param::Int(from.samples as i64), Param::Time(now)]).await?;
            tx.execute(&DELETE, &[tenant, Param::Uuid(self.from)]).await?;
        }
        get(tx, self.tenant, self.into).await
    }
}
