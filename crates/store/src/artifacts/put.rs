//! Takes an artifact in: streamed, hashed on the way, visible only when whole.

use std::fmt::Write;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use domain::limits::{ARTIFACT_INLINE_BYTES, ARTIFACTS_PER_JOB};
use domain::{Epoch, JobId, Label, TenantId};
use futures_util::{Stream, StreamExt};
use sha2::{Digest, Sha256};

use super::blobs::Upload;
use super::{Artifact, Blobs, FIND, garbage, read};
use crate::clock::fill_random;
use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

/// How often an upload under way says so, that nobody takes its blob for garbage.
const RENEW: Duration = Duration::from_secs(300);

#[derive(Clone, Debug)]
pub struct NewArtifact {
    pub tenant: TenantId,
    pub job: JobId,
    pub name: Label,
    pub content_type: String,
    /// The claim it is part of; nothing when a person or a program puts it.
    pub epoch: Option<Epoch>,
    /// What the content must hash to, if the sender said so.
    pub sha256: Option<[u8; 32]>,
    pub most_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArtifactPut {
    Stored(Artifact),
    /// It was there before, the same.
    Same(Artifact),
    /// Another one has the name.
    Exists,
    ClaimLost,
    /// There is no such job.
    NotFound,
    /// The job has as many as it may have.
    TooMany,
    TooLarge,
    DigestMismatch,
    /// The sender broke off.
    Interrupted,
}

impl Store {
    pub async fn put_artifact<E>(
        &self,
        blobs: &Blobs,
        new: NewArtifact,
        body: impl Stream<Item = Result<Bytes, E>> + Send,
    ) -> Result<ArtifactPut, StoreError> {
        // Ten gigabytes need not come in to be refused.
        let guard = Guard { tenant: new.tenant, job: new.job, epoch: new.epoch };
        if let Some(refused) = self.read(Look { guard: guard.clone() }).await? {
            return Ok(refused);
        }
        let content = match self.take_in(blobs, &new, body).await? {
            Ok(content) => content,
            Err(refused) => return Ok(refused),
        };
        let location = content.location.clone();
        let put = match &new.sha256 {
            Some(expected) if *expected != content.sha256 => Ok(ArtifactPut::DigestMismatch),
            _ => self.write(Insert { guard, new, content }).await,
        };
        if let (Some(location), false) = (location, matches!(put, Ok(ArtifactPut::Stored(_)))) {
            // An error may hide a commit that holds; then the row is gone and the blob must stay.
            if put.is_ok() {
                self.discard(blobs, location).await;
            }
        }
        put
    }

    /// Reads the body to its end: a small one into memory, a larger one into a blob.
    async fn take_in<E>(
        &self,
        blobs: &Blobs,
        new: &NewArtifact,
        body: impl Stream<Item = Result<Bytes, E>> + Send,
    ) -> Result<Result<Content, ArtifactPut>, StoreError> {
        let mut body = std::pin::pin!(body);
        let mut digest = Sha256::new();
        let mut size = 0u64;
        let mut inline = BytesMut::new();
        let mut blob: Option<Blob> = None;
        let refused = loop {
            let chunk = match body.next().await {
                Some(Ok(chunk)) => chunk,
                Some(Err(_)) => break ArtifactPut::Interrupted,
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
            if size > new.most_bytes {
                break ArtifactPut::TooLarge;
            }
            digest.update(&chunk);
            match &mut blob {
                Some(blob) => self.write_part(blob, chunk).await?,
                None if size <= ARTIFACT_INLINE_BYTES as u64 => inline.extend_from_slice(&chunk),
                None => {
                    let started = blob.insert(self.begin_blob(blobs, new.tenant).await?);
                    self.write_part(started, inline.split().freeze()).await?;
                    self.write_part(started, chunk).await?;
                }
            }
        };
        if let Some(blob) = blob {
            blob.upload.abort().await;
            self.discard(blobs, blob.location).await;
        }
        Ok(Err(refused))
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

    /// What cannot be deleted now stays on record as garbage.
    async fn discard(&self, blobs: &Blobs, location: String) {
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

/// What came in: in memory, or at a location.
struct Content {
    size: u64,
    sha256: [u8; 32],
    inline: Bytes,
    location: Option<String>,
}

/// What must be true of the job.
#[derive(Clone)]
struct Guard {
    tenant: TenantId,
    job: JobId,
    epoch: Option<Epoch>,
}

// The job's row is held until the commit, so that its claim cannot end and it cannot be pruned in between.
const LIVE: Sql = Sql::new(
    &["select epoch, worker from jobs where id = $1 and tenant = $2"],
    "select epoch, worker from jobs where id = $1 and tenant = $2 for share",
);
const ENDED: Sql = Sql::new(
    &["select epoch from ended where id = $1 and tenant = $2"],
    "select epoch from ended where id = $1 and tenant = $2 for share",
);
const COUNT: Sql = Sql::both(&["select count(*) from artifacts where job = $1"]);

impl Guard {
    async fn refuses(&self, tx: &mut Tx<'_>) -> Result<Option<ArtifactPut>, StoreError> {
        let params = [Param::from(self.job), Param::Int(self.tenant.0)];
        if let Some(row) = tx.query_opt(&LIVE, &params).await? {
            let (epoch, held) = (Epoch(row.int(0)?), row.opt_uuid(1)?.is_some());
            let lost = self.epoch.is_some_and(|said| !held || said != epoch);
            return Ok(lost.then_some(ArtifactPut::ClaimLost));
        }
        Ok(match (tx.query_opt(&ENDED, &params).await?, self.epoch) {
            (None, _) => Some(ArtifactPut::NotFound),
            (Some(_), Some(_)) => Some(ArtifactPut::ClaimLost),
            (Some(_), None) => None,
        })
    }
}

struct Look {
    guard: Guard,
}

impl Operation for Look {
    type Output = Option<ArtifactPut>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        self.guard.refuses(tx).await
    }
}

struct Insert {
    guard: Guard,
    new: NewArtifact,
    content: Content,
}

const INSERT: Sql = Sql::both(&["insert into artifacts
         (job, name, tenant, size, content_type, sha256, content, location, created_at)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9) on conflict (job, name) do nothing"]);

impl Operation for Insert {
    type Output = ArtifactPut;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<ArtifactPut, StoreError> {
        if let Some(refused) = self.guard.refuses(tx).await? {
            return Ok(refused);
        }
        let Self { new, content, .. } = self;
        let (job, tenant, name) = (Param::from(new.job), Param::Int(new.tenant.0), Param::Text(new.name.as_str()));
        let count = tx.query_opt(&COUNT, &[job]).await?.map(|row| row.int(0)).transpose()?.unwrap_or(0);
        if count as usize >= ARTIFACTS_PER_JOB && tx.query_opt(&FIND, &[job, tenant, name]).await?.is_none() {
            return Ok(ArtifactPut::TooMany);
        }
        let params = [
            job,
            name,
            tenant,
            Param::Int(content.size as i64),
            Param::Text(&new.content_type),
            Param::Blob(&content.sha256),
            if content.location.is_some() { Param::Null } else { Param::Blob(&content.inline) },
            Param::text(content.location.as_deref()),
            Param::Time(tx.now()),
        ];
        let inserted = tx.execute(&INSERT, &params).await? > 0;
        let row = tx.query_opt(&FIND, &[job, tenant, name]).await?;
        let found = row.as_ref().map(read).transpose()?;
        let found = found.ok_or_else(|| StoreError::unavailable("an artifact was pruned in between"))?;
        if !inserted {
            let same = found.sha256 == content.sha256 && found.content_type == new.content_type;
            return Ok(if same { ArtifactPut::Same(found) } else { ArtifactPut::Exists });
        }
        if let Some(location) = &content.location {
            garbage::take_back(tx, location).await?;
        }
        Ok(ArtifactPut::Stored(found))
    }
}
