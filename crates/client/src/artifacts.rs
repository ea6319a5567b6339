//! Artifacts: named blobs of a job, streamed in and out (Q9).

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

/// How long a download may stand still before it is given up.
const SILENCE: Duration = Duration::from_secs(60);

/// An artifact on its way here.
pub struct Download {
    pub content_type: String,
    /// In bytes, when the server says.
    pub size: Option<u64>,
    response: reqwest::Response,
}

impl Client {
    /// By name; no blob is read.
    pub async fn artifacts(&self, job: Uuid) -> Result<Page<ArtifactView>, ClientError> {
        self.answer(self.get(&["jobs", &job.to_string(), "artifacts"])).await
    }

    /// `epoch` is the claim's, from a worker that has the job; anyone else leaves it out.
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

    /// Like `put_artifact`, for what does not fit into memory.
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
    /// The next part, or `None` after the last.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, ClientError> {
        match tokio::time::timeout(SILENCE, self.response.chunk()).await {
            Ok(chunk) => chunk.map_err(unreachable),
            Err(elapsed) => Err(ClientError::Unreachable { sent: true, source: elapsed.into() }),
        }
    }

    pub async fn bytes(self) -> Result<Bytes, ClientError> {
        self.response.bytes().await.map_err(unreachable)
    }

    pub fn stream(self) -> impl Stream<Item = Result<Bytes, ClientError>> + Send {
        self.response.bytes_stream().map(|chunk| chunk.map_err(unreachable))
    }
}
