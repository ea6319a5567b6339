//! Where large artifacts live: a folder, or an S3 bucket.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::path::Path as Location;
use object_store::{GetResultPayload, ObjectStore, ObjectStoreExt, PutPayload, WriteMultipart};
use sha2::{Digest, Sha256};
use tokio_util::io::ReaderStream;

use super::s3;
use crate::error::StoreError;

/// What is sent to the folder or bucket at once; S3 takes no parts below 5 MiB.
const PART_BYTES: usize = 8 << 20;
/// Parts of one upload on their way at once: with `PART_BYTES`, the memory it may use.
const PARTS_UNDER_WAY: usize = 3;
/// What the library calls a file until it is whole. Every location is written once.
const UNFINISHED: &str = "#1";
/// Read from a file at once.
const READ_BYTES: usize = 256 << 10;

#[derive(Clone)]
pub struct Blobs {
    store: Arc<dyn ObjectStore>,
    /// As people name it.
    place: String,
    /// Where the files are, if it is a folder.
    folder: Option<PathBuf>,
}

impl Blobs {
    /// A folder, or `s3://bucket/prefix` with region, endpoint and credentials from the usual `AWS_*` variables.
    pub fn open(place: &str) -> Result<Self, StoreError> {
        match place.split_once("://") {
            None => Self::folder(Path::new(place)),
            Some(("s3", _)) => Self::bucket(place, AmazonS3Builder::from_env()),
            Some((scheme, _)) => Err(StoreError::Unusable(format!(
                "artifacts cannot be kept in {scheme}://: name a bucket as s3://BUCKET/PREFIX, or a folder by its path"
            ))),
        }
    }

    pub(super) fn bucket(url: &str, builder: AmazonS3Builder) -> Result<Self, StoreError> {
        Ok(Self::over(s3::bucket(url, builder)?, url))
    }

    /// A bucket, whoever keeps it.
    pub fn over(bucket: Arc<dyn ObjectStore>, url: &str) -> Self {
        Self { store: bucket, place: url.to_owned(), folder: None }
    }

    /// Makes the folder if it is not there. What is written to it survives a power cut before anyone hears of it.
    pub fn folder(folder: &Path) -> Result<Self, StoreError> {
        std::fs::create_dir_all(folder).map_err(|error| unusable(folder, &error))?;
        Self::existing(folder)
    }

    /// A folder that is there.
    pub(super) fn existing(folder: &Path) -> Result<Self, StoreError> {
        let store = LocalFileSystem::new_with_prefix(folder).map_err(|error| unusable(folder, &error))?;
        let place = folder.display().to_string();
        Ok(Self { store: Arc::new(store.with_fsync(true)), place, folder: Some(folder.to_owned()) })
    }

    pub(super) fn place(&self) -> &str {
        self.place.trim_end_matches('/')
    }

    /// What the place is, in a word.
    pub(super) fn kind(&self) -> &'static str {
        if self.folder.is_some() { "folder" } else { "bucket" }
    }

    /// Makes a blob of nothing. As the others it outlasts a power cut.
    pub(super) async fn mark(&self, location: &str) -> Result<(), StoreError> {
        self.store.put(&Location::from(location), PutPayload::new()).await.map(|_| ()).map_err(blob_error)
    }

    pub(super) async fn has(&self, location: &str) -> Result<bool, StoreError> {
        match self.store.head(&Location::from(location)).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(blob_error(error)),
        }
    }

    pub(super) async fn begin(&self, location: &str) -> Result<Upload, StoreError> {
        let parts = self.store.put_multipart(&Location::from(location)).await.map_err(blob_error)?;
        Ok(Upload { parts: WriteMultipart::new_with_chunk_size(parts, PART_BYTES) })
    }

    /// The blob's bytes. A blob that is not what was stored ends in an error, never as if it were whole.
    pub(super) async fn read(
        &self,
        location: &str,
        sha256: [u8; 32],
    ) -> Result<BoxStream<'static, Result<Bytes, StoreError>>, StoreError> {
        let found = self.store.get(&Location::from(location)).await.map_err(|error| match error {
            object_store::Error::NotFound { path, .. } => StoreError::BlobMissing(path),
            error => blob_error(error),
        })?;
        let bytes = match found.payload {
            GetResultPayload::File(file, _) => {
                let unreadable = |error: std::io::Error| unavailable(error.to_string(), error);
                ReaderStream::with_capacity(tokio::fs::File::from_std(file), READ_BYTES).map_err(unreadable).boxed()
            }
            GetResultPayload::Stream(bytes) => bytes.map_err(blob_error).boxed(),
        };
        Ok(checked(bytes, sha256))
    }

    /// A blob that is not there is deleted already. So is what an upload left behind that was killed: a bucket drops its
    /// parts by a rule of its own.
    pub(super) async fn delete(&self, location: &str) -> Result<(), StoreError> {
        if let Some(folder) = &self.folder {
            match tokio::fs::remove_file(folder.join(format!("{location}{UNFINISHED}"))).await {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(unavailable(error.to_string(), error)),
                _ => {}
            }
        }
        match self.store.delete(&Location::from(location)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(blob_error(error)),
        }
    }
}

/// A blob on its way in. Dropped before `finish`, it never was.
pub(super) struct Upload {
    parts: WriteMultipart,
}

impl Upload {
    pub(super) async fn write(&mut self, bytes: Bytes) -> Result<(), StoreError> {
        self.parts.wait_for_capacity(PARTS_UNDER_WAY).await.map_err(blob_error)?;
        self.parts.put(bytes);
        Ok(())
    }

    pub(super) async fn finish(self) -> Result<(), StoreError> {
        self.parts.finish().await.map(|_| ()).map_err(blob_error)
    }

    /// Leaves nothing behind, as far as that can be done now.
    pub(super) async fn abort(self) {
        if let Err(error) = self.parts.abort().await {
            tracing::debug!(%error, "an upload could not be called off; its remains are garbage on record");
        }
    }
}

fn checked(
    mut bytes: BoxStream<'static, Result<Bytes, StoreError>>,
    expected: [u8; 32],
) -> BoxStream<'static, Result<Bytes, StoreError>> {
    let mut digest = Some(Sha256::new());
    let stream = futures_util::stream::poll_fn(move |context| {
        let next = std::task::ready!(bytes.poll_next_unpin(context));
        match (&next, &mut digest) {
            (Some(Ok(chunk)), Some(so_far)) => so_far.update(chunk),
            (None, Some(_)) => {
                let whole: [u8; 32] = digest.take().map(|all| all.finalize().into()).unwrap_or_default();
                if whole != expected {
                    return Poll::Ready(Some(Err(StoreError::unexpected("an artifact is not what was stored"))));
                }
            }
            _ => {}
        }
        Poll::Ready(next)
    });
    stream.boxed()
}

fn unusable(folder: &Path, error: &dyn std::fmt::Display) -> StoreError {
    StoreError::Unusable(format!("artifacts cannot be kept in {}: {error}", folder.display()))
}

fn blob_error(error: object_store::Error) -> StoreError {
    match error {
        object_store::Error::NotFound { path, .. } => StoreError::unexpected(format!("the blob {path} is gone")),
        error => unavailable(error.to_string(), error),
    }
}

fn unavailable(reason: String, source: impl std::error::Error + Send + Sync + 'static) -> StoreError {
    StoreError::ArtifactsUnavailable { reason, source: Some(Box::new(source)) }
}
