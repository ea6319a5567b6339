//! One artifact, streamed out.

use bytes::Bytes;
use domain::{JobId, Label, TenantId};
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};

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
        let Some((artifact, content)) = self.read(Get { tenant, job, name }).await? else { return Ok(None) };
        let bytes = match content {
            Content::Inline(content) => stream::iter([Ok(Bytes::from(content))]).boxed(),
            Content::Blob(location) => blobs.read(&location, artifact.sha256).await?,
        };
        Ok(Some(Download { artifact, bytes }))
    }
}

enum Content {
    Inline(Vec<u8>),
    Blob(String),
}

struct Get {
    tenant: TenantId,
    job: JobId,
    name: Label,
}

impl Operation for Get {
    type Output = Option<(Artifact, Content)>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let params = [Param::from(self.job), Param::Int(self.tenant.0), Param::Text(self.name.as_str())];
        let Some(row) = tx.query_opt(&FIND, &params).await? else { return Ok(None) };
        let content = match (row.opt_blob(5)?, row.opt_text(6)?) {
            (Some(content), _) => Content::Inline(content),
            (None, Some(location)) => Content::Blob(location),
            (None, None) => return Err(StoreError::unexpected("an artifact without content")),
        };
        Ok(Some((read(&row)?, content)))
    }
}
