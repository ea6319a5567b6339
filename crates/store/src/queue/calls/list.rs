//! Lists abandoned executions, newest first: calls that completed after their caller had disconnected.

use domain::{JobError, JobId, TenantId, Time};

use crate::db::codec::error_from_json;
use crate::db::tx::{Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

#[derive(Clone, Debug)]
pub struct AbandonedExecution {
    pub job: JobId,
    pub queue: String,
    pub kind: String,
    pub state: String,
    pub result: Option<String>,
    pub error: Option<JobError>,
    pub principal: String,
    pub called_at: Time,
    pub ended_at: Option<Time>,
    pub abandoned_at: Time,
}

impl Store {
    pub async fn list_abandoned(
        &self,
        tenant: TenantId,
        before: Option<JobId>,
        limit: usize,
    ) -> Result<Vec<AbandonedExecution>, StoreError> {
        self.read(ListAbandonedExecutions { tenant, before, limit }).await
    }
}

struct ListAbandonedExecutions {
    tenant: TenantId,
    before: Option<JobId>,
    limit: usize,
}

const LIST: Sql =
    Sql::both(&["select job, queue, kind, state, result, error, principal, called_at, ended_at, abandoned_at
     from abandoned_executions where tenant = $1 and job < $2 order by job desc limit $3"]);

impl Operation for ListAbandonedExecutions {
    type Output = Vec<AbandonedExecution>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<AbandonedExecution>, StoreError> {
        let before = self.before.map_or(uuid::Uuid::max(), JobId::uuid);
        let params = [Param::Int(self.tenant.0), Param::Uuid(before), Param::Int(self.limit as i64)];
        tx.query(&LIST, &params).await?.iter().map(read).collect()
    }
}

fn read(row: &Row) -> Result<AbandonedExecution, StoreError> {
    Ok(AbandonedExecution {
        job: row.job("job")?,
        queue: row.text("queue")?,
        kind: row.text("kind")?,
        state: row.text("state")?,
        result: row.opt_text("result")?,
        error: row.opt_text("error")?.map(|text| error_from_json(&text)).transpose()?,
        principal: row.text("principal")?,
        called_at: row.time("called_at")?,
        ended_at: row.opt_time("ended_at")?,
        abandoned_at: row.time("abandoned_at")?,
    })
}
