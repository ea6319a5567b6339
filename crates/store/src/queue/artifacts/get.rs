//! Reads one artifact and streams its content.

use bytes::Bytes;
use domain::{JobId, Label, TenantId};
use futures_util::stream::BoxStream;

use super::content::StoredContent;
use super::{Artifact, Blobs, FIND, read};
use crate::db::tx::{Operation, Param, Tx};
use crate::error::StoreError;
use crate::store::Store;

pub struct Download {
    pub artifact: Artifact,
    pub bytes: BoxStream<'static, Result<Bytes, StoreError>>,
}

impl Store {
    /// Opens an artifact for streaming. `None` when there is no such artifact.
    pub async fn artifact(
        &self,
        blobs: &Blobs,
        tenant: TenantId,
        job: JobId,
        name: Label,
    ) -> Result<Option<Download>, StoreError> {
        let Some((artifact, content)) = self.find_artifact(tenant, job, name).await? else { return Ok(None) };
        let bytes = content.stream(blobs, artifact.sha256).await?;
        Ok(Some(Download { artifact, bytes }))
    }

    /// Reads the artifact's row with its inline content or blob location.
    pub(super) async fn find_artifact(
        &self,
        tenant: TenantId,
        job: JobId,
        name: Label,
    ) -> Result<Option<(Artifact, StoredContent)>, StoreError> {
        self.read(FindArtifact { tenant, job, name }).await
    }
}

struct FindArtifact {
    tenant: TenantId,
    job: JobId,
    name: Label,
}

impl Operation for FindArtifact {
    type Output = Option<(Artifact, StoredContent)>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let params = [Param::from(self.job), Param::Int(self.tenant.0), Param::Text(self.name.as_str())];
        let Some(row) = tx.query_opt(&FIND, &params).await? else { return Ok(None) };
        Ok(Some((read(&row)?, StoredContent::read(&row)?)))
    }
}
