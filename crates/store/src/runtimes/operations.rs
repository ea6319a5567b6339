//! The log of operations, one line or a page of them, newest first.

use domain::{RuntimeName, TenantId};
use uuid::Uuid;

use crate::error::StoreError;
use crate::runtimes::{Logged, logged};
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

impl Store {
    pub async fn operation(&self, tenant: TenantId, id: Uuid) -> Result<Option<Logged>, StoreError> {
        self.read(Get { tenant, id }).await
    }

    /// Before `before`; also of a runtime that is gone.
    pub async fn list_operations(
        &self,
        tenant: TenantId,
        runtime: &RuntimeName,
        before: Option<Uuid>,
        limit: usize,
    ) -> Result<Vec<Logged>, StoreError> {
        self.read(List { tenant, runtime: runtime.clone(), before: before.unwrap_or(Uuid::max()), limit }).await
    }
}

struct Get {
    tenant: TenantId,
    id: Uuid,
}

const GET: Sql =
    Sql::both(&["select id, tenant, runtime, kind, source, source_ref, actor, image_ref, container_id, outcome,
         error_code, error_message, requested_at, started_at, finished_at, correlation_id, job
     from operations where id = $1 and tenant = $2"]);
const LIST: Sql = Sql::both(&["select id, tenant, runtime, kind, source, source_ref, actor, image_ref, container_id,
         outcome, error_code, error_message, requested_at, started_at, finished_at, correlation_id, job
     from operations where tenant = $1 and runtime = $2 and id < $3 order by id desc limit $4"]);

impl Operation for Get {
    type Output = Option<Logged>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<Logged>, StoreError> {
        let row = tx.query_opt(&GET, &[Param::Uuid(self.id), Param::Int(self.tenant.0)]).await?;
        row.as_ref().map(logged).transpose()
    }
}

struct List {
    tenant: TenantId,
    runtime: RuntimeName,
    before: Uuid,
    limit: usize,
}

impl Operation for List {
    type Output = Vec<Logged>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Logged>, StoreError> {
        let params = [
            Param::Int(self.tenant.0),
            Param::Text(self.runtime.as_str()),
            Param::Uuid(self.before),
            Param::Int(self.limit as i64),
        ];
        tx.query(&LIST, &params).await?.iter().map(logged).collect()
    }
}
