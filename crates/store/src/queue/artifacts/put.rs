//! Stores an artifact: streamed, hashed on the way, visible only when complete.

use bytes::Bytes;
use domain::limits::ARTIFACTS_PER_JOB;
use domain::{Epoch, JobId, Label, TenantId};
use futures_util::Stream;

use super::content::{Content, ContentRejected, StoredContent};
use super::{Artifact, Blobs, FIND, garbage, read};
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

#[derive(Clone, Debug)]
pub struct NewArtifact {
    pub tenant: TenantId,
    pub job: JobId,
    pub name: Label,
    pub content_type: String,
    /// The claim that the artifact belongs to. `None` for uploads to a job that is not claimed.
    pub epoch: Option<Epoch>,
    /// Expected digest of the content, if the sender gave one.
    pub sha256: Option<[u8; 32]>,
    pub max_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArtifactPut {
    Stored(Artifact),
    /// An identical artifact already existed.
    Same(Artifact),
    /// A different artifact of the same claim, or one uploaded outside a claim, has the name.
    Exists,
    ClaimLost,
    /// The job is claimed, and the upload does not name the claim.
    EpochRequired,
    /// The job does not exist.
    NotFound,
    /// The job has the maximum number of artifacts.
    TooMany,
    TooLarge,
    DigestMismatch,
    /// The upload was interrupted.
    Interrupted,
}

impl Store {
    pub async fn put_artifact<E>(
        &self,
        blobs: &Blobs,
        new: NewArtifact,
        body: impl Stream<Item = Result<Bytes, E>> + Send,
    ) -> Result<ArtifactPut, StoreError> {
        // Reject before reading the body, which may have gigabytes.
        let guard = JobGuard { tenant: new.tenant, job: new.job, epoch: new.epoch };
        if let Err(rejected) = self.read(CheckGuard { guard: guard.clone() }).await? {
            return Ok(rejected);
        }
        let content = match self.receive_content(blobs, new.tenant, new.max_bytes, body).await? {
            Ok(content) => content,
            Err(ContentRejected::TooLarge) => return Ok(ArtifactPut::TooLarge),
            Err(ContentRejected::Interrupted) => return Ok(ArtifactPut::Interrupted),
        };
        let put = match &new.sha256 {
            Some(expected) if *expected != content.sha256 => ArtifactPut::DigestMismatch,
            // On an error the transaction may have committed, so the blob must stay.
            _ => self.write(InsertArtifact { guard, new: new.clone(), content: content.clone() }).await?,
        };
        let is_named = match &put {
            ArtifactPut::Stored(_) => true,
            ArtifactPut::Same(_) => self.replace_lost_blob(blobs, new, &content).await?,
            _ => false,
        };
        if !is_named {
            self.discard(blobs, content).await;
        }
        Ok(put)
    }

    /// Points the row at this content if the blob that it names is lost. Returns whether it did.
    async fn replace_lost_blob(&self, blobs: &Blobs, new: NewArtifact, content: &Content) -> Result<bool, StoreError> {
        let stored = self.find_artifact(new.tenant, new.job, new.name.clone()).await?;
        let Some((_, StoredContent::Blob(lost))) = stored else { return Ok(false) };
        // If this node uses another blob location than the others, the blob is not lost, only invisible here.
        if blobs.has(&lost).await? || self.check_blob_location(blobs).await.is_err() {
            return Ok(false);
        }
        self.write(ReplaceBlob { new, content: content.clone(), lost }).await
    }
}

/// Conditions on the job.
#[derive(Clone)]
struct JobGuard {
    tenant: TenantId,
    job: JobId,
    epoch: Option<Epoch>,
}

// The row lock lasts until the commit, so that the claim cannot end and the job cannot be pruned in between.
const LIVE: Sql = Sql::new(
    &["select epoch, worker from jobs where id = $1 and tenant = $2"],
    "select epoch, worker from jobs where id = $1 and tenant = $2 for share",
);
const ENDED: Sql = Sql::new(
    &["select epoch from ended where id = $1 and tenant = $2"],
    "select epoch from ended where id = $1 and tenant = $2 for share",
);
const COUNT: Sql = Sql::both(&["select count(*) as artifacts from artifacts where job = $1"]);

impl JobGuard {
    /// Returns the epoch of the job's current or last claim, or why the upload is rejected.
    async fn check(&self, tx: &mut Tx<'_>) -> Result<Result<Epoch, ArtifactPut>, StoreError> {
        let params = [Param::from(self.job), Param::Int(self.tenant.0)];
        if let Some(row) = tx.query_opt(&LIVE, &params).await? {
            let (epoch, is_claimed) = (Epoch(row.int("epoch")?), row.opt_uuid("worker")?.is_some());
            let lost = self.epoch.is_some_and(|expected| !is_claimed || expected != epoch);
            return Ok(match (lost, is_claimed && self.epoch.is_none()) {
                (true, _) => Err(ArtifactPut::ClaimLost),
                // Without the epoch, the upload of a worker that lost its claim would be accepted.
                (false, true) => Err(ArtifactPut::EpochRequired),
                (false, false) => Ok(epoch),
            });
        }
        Ok(match (tx.query_opt(&ENDED, &params).await?, self.epoch) {
            (None, _) => Err(ArtifactPut::NotFound),
            (Some(_), Some(_)) => Err(ArtifactPut::ClaimLost),
            (Some(row), None) => Ok(Epoch(row.int("epoch")?)),
        })
    }
}

struct CheckGuard {
    guard: JobGuard,
}

impl Operation for CheckGuard {
    type Output = Result<Epoch, ArtifactPut>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        self.guard.check(tx).await
    }
}

struct InsertArtifact {
    guard: JobGuard,
    new: NewArtifact,
    content: Content,
}

const INSERT: Sql = Sql::both(&["insert into artifacts
         (job, name, tenant, size, content_type, sha256, content, location, created_at, epoch)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) on conflict (job, name) do nothing"]);
// Locked, so that two uploads of the same name replace it one after the other.
const EXISTING: Sql = Sql::new(
    &["select name, size, content_type, sha256, created_at, location, epoch
       from artifacts where job = $1 and tenant = $2 and name = $3"],
    "select name, size, content_type, sha256, created_at, location, epoch
     from artifacts where job = $1 and tenant = $2 and name = $3 for update",
);
const REPLACE_OLDER: Sql =
    Sql::both(&["update artifacts set size = $4, content_type = $5, sha256 = $6, content = $7, location = $8,
         created_at = $9, epoch = $10 where job = $1 and name = $2 and tenant = $3"]);
const SET_EPOCH: Sql = Sql::both(&["update artifacts set epoch = $4 where job = $1 and name = $2 and tenant = $3"]);

impl Operation for InsertArtifact {
    type Output = ArtifactPut;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<ArtifactPut, StoreError> {
        let epoch = match self.guard.check(tx).await? {
            Ok(epoch) => epoch,
            Err(rejected) => return Ok(rejected),
        };
        let Self { new, content, .. } = self;
        let (job, tenant, name) = (Param::from(new.job), Param::Int(new.tenant.0), Param::Text(new.name.as_str()));
        let count = tx.query_opt(&COUNT, &[job]).await?.map(|row| row.int("artifacts")).transpose()?.unwrap_or(0);
        if count as usize >= ARTIFACTS_PER_JOB && tx.query_opt(&FIND, &[job, tenant, name]).await?.is_none() {
            return Ok(ArtifactPut::TooMany);
        }
        let [inline, location] = content.params();
        let params = [
            job,
            name,
            tenant,
            Param::Int(content.size as i64),
            Param::Text(&new.content_type),
            Param::Blob(&content.sha256),
            inline,
            location,
            Param::Time(tx.now()),
            Param::Int(epoch.0),
        ];
        let inserted = tx.execute(&INSERT, &params).await? > 0;
        let row = tx.query_opt(&EXISTING, &[job, tenant, name]).await?;
        let row = row.ok_or_else(|| StoreError::unavailable("the artifact was pruned during the upload"))?;
        let mut stored = read(&row)?;
        if !inserted {
            // An upload outside a claim replaces nothing.
            let is_newer = new.epoch.is_some() && row.int("epoch")? < epoch.0;
            if stored.sha256 == content.sha256 && stored.content_type == new.content_type {
                if is_newer {
                    tx.execute(&SET_EPOCH, &[job, name, tenant, Param::Int(epoch.0)]).await?;
                }
                return Ok(ArtifactPut::Same(stored));
            }
            if !is_newer {
                return Ok(ArtifactPut::Exists);
            }
            tx.execute(&REPLACE_OLDER, &params).await?;
            if let Some(replaced) = row.opt_text("location")? {
                garbage::record_garbage(tx, &replaced).await?;
            }
            let row = tx.query_opt(&FIND, &[job, tenant, name]).await?;
            stored = read(&row.ok_or_else(|| StoreError::unexpected("a replaced artifact is missing"))?)?;
        }
        content.mark_referenced(tx).await?;
        Ok(ArtifactPut::Stored(stored))
    }
}

struct ReplaceBlob {
    new: NewArtifact,
    content: Content,
    lost: String,
}

const REPLACE: Sql = Sql::both(&["update artifacts set content = $4, location = $5
     where job = $1 and name = $2 and tenant = $3 and location = $6"]);

impl Operation for ReplaceBlob {
    type Output = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let Self { new, content, lost } = self;
        let (job, name, tenant) = (Param::from(new.job), Param::Text(new.name.as_str()), Param::Int(new.tenant.0));
        let [inline, location] = content.params();
        // A concurrent upload of the same content may have replaced it first.
        if tx.execute(&REPLACE, &[job, name, tenant, inline, location, Param::Text(lost)]).await? == 0 {
            return Ok(false);
        }
        content.mark_referenced(tx).await?;
        // If the lost blob reappears, no row names it any more.
        garbage::record_garbage(tx, lost).await?;
        Ok(true)
    }
}
