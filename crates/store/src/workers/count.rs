//! How many workers of a tenant live, for its figures.

use domain::TenantId;

use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Living {
    pub working: i64,
    /// They were asked to take no more.
    pub draining: i64,
}

impl Store {
    pub async fn living_workers(&self, tenant: TenantId) -> Result<Living, StoreError> {
        self.read(Count { tenant }).await
    }
}

struct Count {
    tenant: TenantId,
}

const COUNT: Sql =
    Sql::both(&["select draining, count(*) from workers where tenant = $1 and dead_at is null group by draining"]);

impl Operation for Count {
    type Output = Living;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Living, StoreError> {
        let mut living = Living::default();
        for row in tx.query(&COUNT, &[Param::Int(self.tenant.0)]).await? {
            match row.bool(0)? {
                true => living.draining = row.int(1)?,
                false => living.working = row.int(1)?,
            }
        }
        Ok(living)
    }
}
