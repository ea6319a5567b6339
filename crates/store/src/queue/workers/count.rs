//! Counts the live workers of a tenant for metrics.

use domain::TenantId;

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerCounts {
    pub working: i64,
    /// Draining: they finish their jobs and claim no more.
    pub draining: i64,
}

impl Store {
    pub async fn count_workers(&self, tenant: TenantId) -> Result<WorkerCounts, StoreError> {
        self.read(CountWorkers { tenant }).await
    }
}

struct CountWorkers {
    tenant: TenantId,
}

const COUNT: Sql = Sql::both(&[
    "select draining, count(*) as workers from workers where tenant = $1 and dead_at is null group by draining",
]);

impl Operation for CountWorkers {
    type Output = WorkerCounts;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<WorkerCounts, StoreError> {
        let mut counts = WorkerCounts::default();
        for row in tx.query(&COUNT, &[Param::Int(self.tenant.0)]).await? {
            match row.bool("draining")? {
                true => counts.draining = row.int("workers")?,
                false => counts.working = row.int("workers")?,
            }
        }
        Ok(counts)
    }
}
