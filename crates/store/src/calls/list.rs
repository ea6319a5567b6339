//! Answers that came when nobody was there to hear them, newest first.

use domain::{JobError, JobId, TenantId, Time};

use crate::codec::error_from_json;
use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Operation, Param, Row, Sql, Tx};

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
        self.read(List { tenant, before, limit }).await
    }
}

struct List {
    tenant: TenantId,
    before: Option<JobId>,
    limit: usize,
}

const LIST: Sql =
    Sql::both(&["select job, queue, kind, state, result, error, principal, called_at, ended_at, abandoned_at
     from abandoned_executions where tenant = $1 and job < $2 order by job desc limit $3"]);

impl Operation for List {
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
        job: row.job(0)?,
        queue: row.text(1)?,
        kind: row.text(2)?,
        state: row.text(3)?,
        result: row.opt_text(4)?,
        error: row.opt_text(5)?.map(|text| error_from_json(&text)).transpose()?,
        principal: row.text(6)?,
        called_at: row.time(7)?,
        ended_at: row.opt_time(8)?,
        abandoned_at: row.time(9)?,
    })
}
