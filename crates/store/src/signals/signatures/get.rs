//! Reads one signature, or pages of a tenant's signatures, newest first.

use domain::TenantId;
use uuid::Uuid;

use super::{Signature, read};
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

impl Store {
    pub async fn signature(&self, tenant: TenantId, id: Uuid) -> Result<Option<Signature>, StoreError> {
        self.read(GetSignature { tenant, id }).await
    }

    /// Returns up to `limit` signatures with ids below `before`, newest first.
    pub async fn list_signatures(
        &self,
        tenant: TenantId,
        before: Option<Uuid>,
        limit: usize,
    ) -> Result<Vec<Signature>, StoreError> {
        self.read(ListSignatures { tenant, before, limit }).await
    }
}

struct GetSignature {
    tenant: TenantId,
    id: Uuid,
}

const GET: Sql =
    Sql::both(&["select id, phase, error_code, kind, subject_pattern, likely_cause, mttr_p50_s, mttr_p95_s,
         suggested_action, remediation_url, confidence, version, samples, last_match_at, enabled, muted, status,
         fixed_at, recurred_at, created_by, created_at, updated_at, expires_at
     from signatures where id = $1 and tenant = $2"]);
const LIST: Sql =
    Sql::both(&["select id, phase, error_code, kind, subject_pattern, likely_cause, mttr_p50_s, mttr_p95_s,
         suggested_action, remediation_url, confidence, version, samples, last_match_at, enabled, muted, status,
         fixed_at, recurred_at, created_by, created_at, updated_at, expires_at
     from signatures where tenant = $1 and id < $2 order by id desc limit $3"]);

impl Operation for GetSignature {
    type Output = Option<Signature>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<Signature>, StoreError> {
        get(tx, self.tenant, self.id).await
    }
}

/// Reads one signature within a transaction.
pub(crate) async fn get(tx: &mut Tx<'_>, tenant: TenantId, id: Uuid) -> Result<Option<Signature>, StoreError> {
    let row = tx.query_opt(&GET, &[Param::Uuid(id), Param::Int(tenant.0)]).await?;
    row.as_ref().map(read).transpose()
}

struct ListSignatures {
    tenant: TenantId,
    before: Option<Uuid>,
    limit: usize,
}

impl Operation for ListSignatures {
    type Output = Vec<Signature>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Signature>, StoreError> {
        let before = Param::Uuid(self.before.unwrap_or(Uuid::max()));
        let rows = tx.query(&LIST, &[Param::Int(self.tenant.0), before, Param::Int(self.limit as i64)]).await?;
        rows.iter().map(read).collect()
    }
}
