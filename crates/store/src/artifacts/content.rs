//! Content of any size: a small one goes into its row, a larger one is streamed into a blob. Artifacts and files share it.

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
use crate::clock::fill_random;
use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Param, Row, Tx};

/// How often an upload under way says so, that nobody takes its blob for garbage.
const RENEW: Duration = Duration::from_secs(300);

/// What came in: in memory, or at a location that is on record as garbage until a row names it.
#[derive(Clone, Debug)]
pub struct Content {
    pub(crate) size: u64,
    pub(crate) sha256: [u8; 32],
    inline: Bytes,
    location: Option<String>,
}

/// Why content was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    TooLarge,
    /// The sender broke off.
    Interrupted,
}

/// Content as a row keeps it.
pub(crate) enum Kept {
    Inline(Vec<u8>),
    Blob(String),
}

impl Store {
    /// Reads a body to its end.
    pub(crate) async fn take_in<E>(
        &self,
        blobs: &Blobs,
        tenant: TenantId,
        most_bytes: u64,
        body: impl Stream<Item = Result<Bytes, E>> + Send,
    ) -> Result<Result<Content, Unfit>, StoreError> {
        let mut body = std::pin::pin!(body);
        let mut digest = Sha256::new();
        let mut size = 0u64;
        let mut inline = BytesMut::new();
        let mut blob: Option<Blob> = None;
        let unfit = loop {
            let chunk = match body.next().await {
                Some(Ok(chunk)) => chunk,
                Some(Err(_)) => break Unfit::Interrupted,
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
            if size > most_bytes {
                break Unfit::TooLarge;
            }
            digest.update(&chunk);
            match &mut blob {
                Some(blob) => self.write_part(blob, chunk).await?,
                None if size <= ARTIFACT_INLINE_BYTES as u64 => inline.extend_from_slice(&chunk),
                None => {
                    let started = blob.insert(self.begin_blob(blobs, tenant).await?);
                    self.write_part(started, inline.split().freeze()).await?;
                    self.write_part(started, chunk).await?;
                }
            }
        };
        if let Some(blob) = blob {
            blob.upload.abort().await;
            self.discard_blob(blobs, blob.location).await;
        }
        Ok(Err(unfit))
    }

    async fn begin_blob(&self, blobs: &Blobs, tenant: TenantId) -> Result<Blob, StoreError> {
        let mut random = [0u8; 16];
        fill_random(&mut random);
        let mut location = format!("{}/", tenant.0);
        random.iter().for_each(|byte| write!(location, "{byte:02x}").expect("a string takes everything"));
        self.intend_blob(location.clone()).await?;
        Ok(Blob { upload: blobs.begin(&location).await?, location, renewed: Instant::now() })
    }

    async fn write_part(&self, blob: &mut Blob, chunk: Bytes) -> Result<(), StoreError> {
        if blob.renewed.elapsed() > RENEW {
            self.intend_blob(blob.location.clone()).await?;
            blob.renewed = Instant::now();
        }
        blob.upload.write(chunk).await
    }

    /// Gives up content that no row names.
    pub async fn discard(&self, blobs: &Blobs, content: Content) {
        if let Some(location) = content.location {
            self.discard_blob(blobs, location).await;
        }
    }

    /// What cannot be deleted now stays on record as garbage.
    async fn discard_blob(&self, blobs: &Blobs, location: String) {
        let discarded = match blobs.delete(&location).await {
            Ok(()) => self.forget_blob(location.clone()).await,
            Err(error) => Err(error),
        };
        if let Err(error) = discarded {
            tracing::debug!(location, %error, "a refused upload stays on record as garbage");
        }
    }
}

struct Blob {
    upload: Upload,
    location: String,
    renewed: Instant,
}

impl Content {
    /// For the columns `content` and `location` of its row.
    pub(crate) fn params(&self) -> [Param<'_>; 2] {
        match &self.location {
            Some(location) => [Param::Null, Param::Text(location)],
            None => [Param::Blob(&self.inline), Param::Null],
        }
    }

    /// A row names it now, in this transaction.
    pub(crate) async fn keep(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        match &self.location {
            Some(location) => garbage::take_back(tx, location).await,
            None => Ok(()),
        }
    }
}

impl Kept {
    /// From the columns `content` and `location`.
    pub(crate) fn read(row: &Row, content: usize, location: usize) -> Result<Self, StoreError> {
        match (row.opt_blob(content)?, row.opt_text(location)?) {
            (Some(content), _) => Ok(Self::Inline(content)),
            (None, Some(location)) => Ok(Self::Blob(location)),
            (None, None) => Err(StoreError::unexpected("a row without its content")),
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
