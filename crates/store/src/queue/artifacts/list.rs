//! Lists the artifacts of a job by name. No content is read.

use domain::limits::ARTIFACTS_PER_JOB;
use domain::{JobId, TenantId};

use super::{Artifact, read};
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

impl Store {
    /// Returns the artifacts. `None` when there is no such job.
    pub async fn list_artifacts(&self, tenant: TenantId, job: JobId) -> Result<Option<Vec<Artifact>>, StoreError> {
        self.read(ListArtifacts { tenant, job }).await
    }
}

struct ListArtifacts {
    tenant: TenantId,
    job: JobId,
}

const EXISTS: Sql = Sql::both(&["select 1 from jobs where id = $1 and tenant = $2
     union all select 1 from ended where id = $1 and tenant = $2"]);
const LIST: Sql = Sql::both(&["select name, size, content_type, sha256, created_at
     from artifacts where job = $1 and tenant = $2 order by name limit $3"]);

impl Operation for ListArtifacts {
    type Output = Option<Vec<Artifact>>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let params = [Param::from(self.job), Param::Int(self.tenant.0), Param::Int(ARTIFACTS_PER_JOB as i64)];
        if tx.query_opt(&EXISTS, &params[..2]).await?.is_none() {
            return Ok(None);
        }
        tx.query(&LIST, &params).await?.iter().map(read).collect::<Result<_, _>>().map(Some)
    }
}
