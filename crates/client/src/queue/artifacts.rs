//! Artifacts: named blobs of a job, uploaded and downloaded as streams.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use reqwest::header::CONTENT_TYPE;
use reqwest::{Body, Method};
use tokio::io::AsyncRead;
use tokio_util::io::ReaderStream;
use uuid::Uuid;
use wire::{ArtifactView, Page};

use crate::client::{Client, read, unreachable};
use crate::error::ClientError;

/// How long a download may stall before it fails.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// An artifact that is being downloaded.
pub struct Download {
    /// The content type that was uploaded.
    pub content_type: String,
    /// Size in bytes, if the server sent it.
    pub size: Option<u64>,
    response: reqwest::Response,
}

impl Client {
    /// Returns the artifacts of a job by name, without their contents.
    pub async fn artifacts(&self, job: Uuid) -> Result<Page<ArtifactView>, ClientError> {
        self.fetch(self.get(&["jobs", &job.to_string(), "artifacts"])).await
    }

    /// Uploads an artifact. A worker that runs the job passes the claim's `epoch`; other callers pass `None`.
    pub async fn put_artifact(
        &self,
        job: Uuid,
        epoch: Option<i64>,
        name: &str,
        content_type: &str,
        bytes: impl Into<Bytes>,
    ) -> Result<ArtifactView, ClientError> {
        self.upload(job, epoch, name, content_type, Body::from(bytes.into())).await
    }

    /// Like `put_artifact`, for contents that do not fit into memory.
    pub async fn put_artifact_from(
        &self,
        job: Uuid,
        epoch: Option<i64>,
        name: &str,
        content_type: &str,
        source: impl AsyncRead + Send + 'static,
    ) -> Result<ArtifactView, ClientError> {
        self.upload(job, epoch, name, content_type, Body::wrap_stream(ReaderStream::new(source))).await
    }

    async fn upload(
        &self,
        job: Uuid,
        epoch: Option<i64>,
        name: &str,
        content_type: &str,
        body: Body,
    ) -> Result<ArtifactView, ClientError> {
        let mut request = self
            .request(Method::PUT, &["jobs", &job.to_string(), "artifacts", name])
            .header(CONTENT_TYPE, content_type)
            .body(body);
        if let Some(epoch) = epoch {
            request = request.header("X-Windlass-Epoch", epoch);
        }
        read(self.send(request).await?).await
    }

    /// Downloads an artifact.
    pub async fn artifact(&self, job: Uuid, name: &str) -> Result<Download, ClientError> {
        let response = self.send(self.get(&["jobs", &job.to_string(), "artifacts", name])).await?;
        let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        Ok(Download {
            content_type: content_type.unwrap_or("application/octet-stream").to_owned(),
            size: response.content_length(),
            response,
        })
    }
}

impl Download {
    /// Returns the next chunk, or `None` at the end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, ClientError> {
        match tokio::time::timeout(READ_TIMEOUT, self.response.chunk()).await {
            Ok(chunk) => chunk.map_err(unreachable),
            Err(elapsed) => Err(ClientError::Unreachable { sent: true, source: elapsed.into() }),
        }
    }

    /// Reads the whole content.
    pub async fn bytes(self) -> Result<Bytes, ClientError> {
        self.response.bytes().await.map_err(unreachable)
    }

    /// The content in chunks.
    pub fn stream(self) -> impl Stream<Item = Result<Bytes, ClientError>> + Send {
        self.response.bytes_stream().map(|chunk| chunk.map_err(unreachable))
    }
}
