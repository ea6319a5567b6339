//! Content of any size, for artifacts and OpenAI files. Small content is stored in its row, larger content is streamed
//! into a blob.

use std::fmt::Write;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use domain::TenantId;
use domain::limits::ARTIFACT_INLINE_BYTES;
use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt};
use sha2::{Digest, Sha256};

use super::blobs::Upload;
use super::{Blobs, garbage};
use crate::db::clock::fill_random;
use crate::db::tx::{Param, Row, Tx};
use crate::error::StoreError;
use crate::store::Store;

/// Interval at which an active upload renews its garbage row, so that its blob is not collected.
const RENEW: Duration = Duration::from_secs(300);

/// Received content: in memory, or in a blob that is registered as garbage until a row names it.
#[derive(Clone, Debug)]
pub struct Content {
    pub(crate) size: u64,
    pub(crate) sha256: [u8; 32],
    inline: Bytes,
    location: Option<String>,
}

/// Why content was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentRejected {
    TooLarge,
    /// The upload was interrupted.
    Interrupted,
}

/// Content as stored in a row.
pub(crate) enum StoredContent {
    Inline(Vec<u8>),
    Blob(String),
}

impl Store {
    /// Reads a body to its end. Rejected content leaves no blob behind.
    pub(crate) async fn receive_content<E>(
        &self,
        blobs: &Blobs,
        tenant: TenantId,
        max_bytes: u64,
        body: impl Stream<Item = Result<Bytes, E>> + Send,
    ) -> Result<Result<Content, ContentRejected>, StoreError> {
        let mut body = std::pin::pin!(body);
        let mut digest = Sha256::new();
        let mut size = 0u64;
        let mut inline = BytesMut::new();
        let mut blob: Option<Blob> = None;
        let rejection = loop {
            let chunk = match body.next().await {
                Some(Ok(chunk)) => chunk,
                Some(Err(_)) => break ContentRejected::Interrupted,
                None => {
                    let (sha256, location) =
                        (digest.finalize().into(), blob.as_ref().map(|blob| blob.location.clone()));
                    if let Some(blob) = blob {
                        blob.upload.finish().await?;
                    }
                    return Ok(Ok(Content { size, sha256, inline: inline.freeze(), location }));
                }
            };
            size += chunk.len() as u64;
            if size > max_bytes {
                break ContentRejected::TooLarge;
            }
            digest.update(&chunk);
            match &mut blob {
                Some(blob) => self.write_part(blob, chunk).await?,
                None if size <= ARTIFACT_INLINE_BYTES as u64 => inline.extend_from_slice(&chunk),
                None => {
                    let started = blob.insert(self.start_blob(blobs, tenant).await?);
                    self.write_part(started, inline.split().freeze()).await?;
                    self.write_part(started, chunk).await?;
                }
            }
        };
        if let Some(blob) = blob {
            blob.upload.abort().await;
            self.discard_blob(blobs, blob.location).await;
        }
        Ok(Err(rejection))
    }

    async fn start_blob(&self, blobs: &Blobs, tenant: TenantId) -> Result<Blob, StoreError> {
        let mut random = [0u8; 16];
        fill_random(&mut random);
        let mut location = format!("{}/", tenant.0);
        random.iter().for_each(|byte| write!(location, "{byte:02x}").expect("writing to a string never fails"));
        self.record_upload(location.clone()).await?;
        Ok(Blob { upload: blobs.begin(&location).await?, location, renewed: Instant::now() })
    }

    async fn write_part(&self, blob: &mut Blob, chunk: Bytes) -> Result<(), StoreError> {
        if blob.renewed.elapsed() > RENEW {
            self.record_upload(blob.location.clone()).await?;
            blob.renewed = Instant::now();
        }
        blob.upload.write(chunk).await
    }

    /// Deletes content that no row names.
    pub async fn discard(&self, blobs: &Blobs, content: Content) {
        if let Some(location) = content.location {
            self.discard_blob(blobs, location).await;
        }
    }

    /// Deletes a blob and its garbage row. If that fails, garbage collection retries later.
    async fn discard_blob(&self, blobs: &Blobs, location: String) {
        let discarded = match blobs.delete(&location).await {
            Ok(()) => self.delete_garbage_row(location.clone()).await,
            Err(error) => Err(error),
        };
        if let Err(error) = discarded {
            tracing::debug!(location, %error, "cannot delete a rejected upload; garbage collection will retry");
        }
    }
}

struct Blob {
    upload: Upload,
    location: String,
    renewed: Instant,
}

impl Content {
    /// Returns the parameters for the columns `content` and `location`.
    pub(crate) fn params(&self) -> [Param<'_>; 2] {
        match &self.location {
            Some(location) => [Param::Null, Param::Text(location)],
            None => [Param::Blob(&self.inline), Param::Null],
        }
    }

    /// Removes the blob from the garbage rows. To be called in the transaction that inserts the row naming it.
    pub(crate) async fn mark_referenced(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        match &self.location {
            Some(location) => garbage::remove_record(tx, location).await,
            None => Ok(()),
        }
    }
}

impl StoredContent {
    /// Reads the columns `content` and `location`.
    pub(crate) fn read(row: &Row) -> Result<Self, StoreError> {
        match (row.opt_blob("content")?, row.opt_text("location")?) {
            (Some(content), _) => Ok(Self::Inline(content)),
            (None, Some(location)) => Ok(Self::Blob(location)),
            (None, None) => Err(StoreError::unexpected("a row has neither content nor location")),
        }
    }

    pub(crate) async fn stream(
        self,
        blobs: &Blobs,
        sha256: [u8; 32],
    ) -> Result<BoxStream<'static, Result<Bytes, StoreError>>, StoreError> {
        match self {
            Self::Inline(content) => Ok(stream::iter([Ok(Bytes::from(content))]).boxed()),
            Self::Blob(location) => blobs.read(&location, sha256).await,
        }
    }
}
