//! One artifact, streamed out.

use bytes::Bytes;
use domain::{JobId, Label, TenantId};
use futures_util::stream::BoxStream;

use super::content::Kept;
use super::{Artifact, Blobs, FIND, read};
use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Operation, Param, Tx};

pub struct Download {
    pub artifact: Artifact,
    pub bytes: BoxStream<'static, Result<Bytes, StoreError>>,
}

impl Store {
    pub async fn artifact(
        &self,
        blobs: &Blobs,
        tenant: TenantId,
        job: JobId,
        name: Label,
    ) -> Result<Option<Download>, StoreError> {
        let Some((artifact, content)) = self.kept_artifact(tenant, job, name).await? else { return Ok(None) };
        let bytes = content.stream(blobs, artifact.sha256).await?;
        Ok(Some(Download { artifact, bytes }))
    }

    /// As its row has it.
    pub(super) async fn kept_artifact(
        &self,
        tenant: TenantId,
        job: JobId,
        name: Label,
    ) -> Result<Option<(Artifact, Kept)>, StoreError> {
        self.read(Get { tenant, job, name }).await
    }
}

struct Get {
    tenant: TenantId,
    job: JobId,
    name: Label,
}

impl Operation for Get {
    type Output = Option<(Artifact, Kept)>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let params = [Param::from(self.job), Param::Int(self.tenant.0), Param::Text(self.name.as_str())];
        let Some(row) = tx.query_opt(&FIND, &params).await? else { return Ok(None) };
        Ok(Some((read(&row)?, Kept::read(&row, 5, 6)?)))
    }
}
