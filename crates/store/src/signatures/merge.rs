//! Two signatures that tell of one cause become one (S7).

use domain::TenantId;
use uuid::Uuid;

use super::Signature;
use super::get::get;
use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

impl Store {
    /// `from` goes; its groups and samples are `into`'s now. `None` when one of them is not there.
    pub async fn merge_signatures(
        &self,
        tenant: TenantId,
        from: Uuid,
        into: Uuid,
    ) -> Result<Option<Signature>, StoreError> {
        let merged = self.write(Merge { tenant, from, into }).await?;
        self.kept_signatures().forget(&tenant);
        Ok(merged)
    }
}

struct Merge {
    tenant: TenantId,
    from: Uuid,
    into: Uuid,
}

const MOVE: Sql = Sql::both(&["update failure_groups set signature = $3 where tenant = $1 and signature = $2"]);
const ADD: Sql = Sql::both(&["update signatures set samples = samples + $2, version = version + 1, updated_at = $3
     where id = $1"]);
const DELETE: Sql = Sql::both(&["delete from signatures where tenant = $1 and id = $2"]);

impl Operation for Merge {
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
