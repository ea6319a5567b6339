//! Reads the operation log: one row, or pages, newest first.

use domain::{RuntimeName, TenantId};
use uuid::Uuid;

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::runtimes::{OperationRecord, operation_record};
use crate::store::Store;

impl Store {
    pub async fn operation(&self, tenant: TenantId, id: Uuid) -> Result<Option<OperationRecord>, StoreError> {
        self.read(GetOperation { tenant, id }).await
    }

    /// Returns up to `limit` operations of a runtime with ids below `before`. Works for deleted runtimes, too.
    pub async fn list_operations(
        &self,
        tenant: TenantId,
        runtime: &RuntimeName,
        before: Option<Uuid>,
        limit: usize,
    ) -> Result<Vec<OperationRecord>, StoreError> {
        self.read(ListOperations { tenant, runtime: runtime.clone(), before: before.unwrap_or(Uuid::max()), limit })
            .await
    }
}

struct GetOperation {
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

impl Operation for GetOperation {
    type Output = Option<OperationRecord>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<OperationRecord>, StoreError> {
        let row = tx.query_opt(&GET, &[Param::Uuid(self.id), Param::Int(self.tenant.0)]).await?;
        row.as_ref().map(operation_record).transpose()
    }
}

struct ListOperations {
    tenant: TenantId,
    runtime: RuntimeName,
    before: Uuid,
    limit: usize,
}

impl Operation for ListOperations {
    type Output = Vec<OperationRecord>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<OperationRecord>, StoreError> {
        let params = [
            Param::Int(self.tenant.0),
            Param::Text(self.runtime.as_str()),
            Param::Uuid(self.before),
            Param::Int(self.limit as i64),
        ];
        tx.query(&LIST, &params).await?.iter().map(operation_record).collect()
    }
}
