//! Lists the newest jobs that have not ended, of all tenants. Estimates are sampled from them.

use domain::{JobId, TenantId};

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

impl Store {
    /// Returns up to `limit` jobs that have not ended, the newest first.
    pub async fn newest_unfinished_jobs(&self, limit: usize) -> Result<Vec<(TenantId, JobId)>, StoreError> {
        self.read(ListNewest { limit }).await
    }
}

struct ListNewest {
    limit: usize,
}

const NEWEST: Sql = Sql::both(&["select id, tenant from jobs order by id desc limit $1"]);

impl Operation for ListNewest {
    type Output = Vec<(TenantId, JobId)>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let rows = tx.query(&NEWEST, &[Param::Int(self.limit as i64)]).await?;
        rows.iter().map(|row| Ok((TenantId(row.int("tenant")?), row.job("id")?))).collect()
    }
}
