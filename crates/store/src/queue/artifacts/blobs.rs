//! Storage for large artifacts: a folder or an S3 bucket.

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
use crate::db::private_files;
use crate::error::StoreError;

/// Part size of an upload. S3 rejects parts below 5 MiB.
const PART_BYTES: usize = 8 << 20;
/// Concurrent parts of one upload. Times `PART_BYTES`, the memory that an upload may use.
const PARTS_IN_FLIGHT: usize = 3;
/// Suffix that `object_store` gives a file until it is complete. Every location is written once, so the number is 1.
const PARTIAL_SUFFIX: &str = "#1";
/// Read buffer for files.
const READ_BYTES: usize = 256 << 10;

#[derive(Clone)]
pub struct Blobs {
    store: Arc<dyn ObjectStore>,
    /// Path or URL for messages.
    display_name: String,
    /// Path, if it is a folder.
    folder: Option<PathBuf>,
}

impl Blobs {
    /// Opens a folder, or `s3://bucket/prefix` with region, endpoint and credentials from the `AWS_*` variables.
    pub fn open(place: &str) -> Result<Self, StoreError> {
        match place.split_once("://") {
            None => Self::folder(Path::new(place)),
            Some(("s3", _)) => Self::bucket(place, AmazonS3Builder::from_env()),
            Some((scheme, _)) => Err(StoreError::Unusable(format!(
                "cannot store artifacts in {place}: unsupported scheme {scheme}://; use a folder path or s3://BUCKET/PREFIX"
            ))),
        }
    }

    pub(super) fn bucket(url: &str, builder: AmazonS3Builder) -> Result<Self, StoreError> {
        Ok(Self::over(s3::bucket(url, builder)?, url))
    }

    /// Wraps an object store. `url` is used in messages.
    pub fn over(bucket: Arc<dyn ObjectStore>, url: &str) -> Self {
        Self { store: bucket, display_name: url.to_owned(), folder: None }
    }

    /// Opens a folder and creates it if missing. Writes are synced to disk before they are reported as done.
    pub fn folder(folder: &Path) -> Result<Self, StoreError> {
        private_files::create_folder(folder).map_err(|error| unusable(folder, &error))?;
        Self::existing(folder)
    }

    /// Opens an existing folder.
    pub(super) fn existing(folder: &Path) -> Result<Self, StoreError> {
        let store = LocalFileSystem::new_with_prefix(folder).map_err(|error| unusable(folder, &error))?;
        let display_name = folder.display().to_string();
        Ok(Self { store: Arc::new(store.with_fsync(true)), display_name, folder: Some(folder.to_owned()) })
    }

    pub(super) fn display_name(&self) -> &str {
        self.display_name.trim_end_matches('/')
    }

    /// Returns "folder" or "bucket" for messages.
    pub(super) fn kind(&self) -> &'static str {
        if self.folder.is_some() { "folder" } else { "bucket" }
    }

    /// Creates an empty blob, synced to disk like any other.
    pub(super) async fn put_empty(&self, location: &str) -> Result<(), StoreError> {
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
        let file = self.folder.as_ref().map(|folder| folder.join(location));
        // The object store applies the umask to folders that it creates. A missing root is left to it.
        match file.as_deref().and_then(Path::parent).map(private_files::create_folder_durably) {
            Some(Err(error)) if error.kind() != ErrorKind::NotFound => {
                return Err(unavailable(error.to_string(), error));
            }
            _ => {}
        }
        let parts = self.store.put_multipart(&Location::from(location)).await.map_err(blob_error)?;
        Ok(Upload { parts: WriteMultipart::new_with_chunk_size(parts, PART_BYTES), file })
    }

    /// Streams the blob's bytes. If their digest differs from `sha256`, the stream ends with an error.
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

    /// Deletes a blob, and in a folder also the partial file of a killed upload. A missing blob is not an error. A
    /// bucket must remove incomplete multipart uploads by its own lifecycle rule.
    pub(super) async fn delete(&self, location: &str) -> Result<(), StoreError> {
        if let Some(folder) = &self.folder {
            match tokio::fs::remove_file(folder.join(format!("{location}{PARTIAL_SUFFIX}"))).await {
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

/// A blob upload. Dropping it before `finish` leaves no blob.
pub(super) struct Upload {
    parts: WriteMultipart,
    /// The blob's file, in a folder.
    file: Option<PathBuf>,
}

impl Upload {
    pub(super) async fn write(&mut self, bytes: Bytes) -> Result<(), StoreError> {
        self.parts.wait_for_capacity(PARTS_IN_FLIGHT).await.map_err(blob_error)?;
        self.parts.put(bytes);
        Ok(())
    }

    pub(super) async fn finish(self) -> Result<(), StoreError> {
        self.parts.finish().await.map_err(blob_error)?;
        // Until here, the mode of the folder kept other users out. Some file systems have no modes.
        if let Some(Err(error)) = self.file.as_deref().map(private_files::restrict_file) {
            tracing::debug!(%error, "cannot restrict the access to a blob");
        }
        Ok(())
    }

    /// Aborts the upload and deletes its parts, as far as possible now.
    pub(super) async fn abort(self) {
        if let Err(error) = self.parts.abort().await {
            tracing::debug!(%error, "cannot abort an upload; garbage collection will delete its parts");
        }
    }
}

/// Verifies the digest at the end of the stream.
fn checked(
    mut bytes: BoxStream<'static, Result<Bytes, StoreError>>,
    expected: [u8; 32],
) -> BoxStream<'static, Result<Bytes, StoreError>> {
    let mut digest = Some(Sha256::new());
    let stream = futures_util::stream::poll_fn(move |context| {
        let next = std::task::ready!(bytes.poll_next_unpin(context));
        match (&next, &mut digest) {
            (Some(Ok(chunk)), Some(digest)) => digest.update(chunk),
            (None, Some(_)) => {
                let whole: [u8; 32] = digest.take().map(|all| all.finalize().into()).unwrap_or_default();
                if whole != expected {
                    return Poll::Ready(Some(Err(StoreError::unexpected(
                        "the content of an artifact does not match its digest",
                    ))));
                }
            }
            _ => {}
        }
        Poll::Ready(next)
    });
    stream.boxed()
}

fn unusable(folder: &Path, error: &dyn std::fmt::Display) -> StoreError {
    StoreError::Unusable(format!("cannot store artifacts in {}: {error}", folder.display()))
}

fn blob_error(error: object_store::Error) -> StoreError {
    match error {
        object_store::Error::NotFound { path, .. } => StoreError::unexpected(format!("the blob {path} does not exist")),
        error => unavailable(error.to_string(), error),
    }
}

fn unavailable(reason: String, source: impl std::error::Error + Send + Sync + 'static) -> StoreError {
    StoreError::ArtifactsUnavailable { reason, source: Some(Box::new(source)) }
}
