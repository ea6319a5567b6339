//! Takes an artifact in: streamed, hashed on the way, visible only when whole.

use bytes::Bytes;
use domain::limits::ARTIFACTS_PER_JOB;
use domain::{Epoch, JobId, Label, TenantId};
use futures_util::Stream;

use super::content::{Content, Kept, Unfit};
use super::{Artifact, Blobs, FIND, garbage, read};
use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

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
        let content = match self.take_in(blobs, new.tenant, new.most_bytes, body).await? {
            Ok(content) => content,
            Err(Unfit::TooLarge) => return Ok(ArtifactPut::TooLarge),
            Err(Unfit::Interrupted) => return Ok(ArtifactPut::Interrupted),
        };
        let put = match &new.sha256 {
            Some(expected) if *expected != content.sha256 => ArtifactPut::DigestMismatch,
            // An error may hide a commit that holds; then the blob must stay.
            _ => self.write(Insert { guard, new: new.clone(), content: content.clone() }).await?,
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

    /// Has the row name this content, where the blob that it names is lost. Gives whether it does.
    async fn replace_lost_blob(&self, blobs: &Blobs, new: NewArtifact, content: &Content) -> Result<bool, StoreError> {
        let kept = self.kept_artifact(new.tenant, new.job, new.name.clone()).await?;
        let Some((_, Kept::Blob(lost))) = kept else { return Ok(false) };
        // Where this node keeps blobs in another place than the others, it is only not seen from here.
        if blobs.has(&lost).await? || self.check_home(blobs).await.is_err() {
            return Ok(false);
        }
        self.write(Replace { new, content: content.clone(), lost }).await
    }
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
        ];
        let inserted = tx.execute(&INSERT, &params).await? > 0;
        let row = tx.query_opt(&FIND, &[job, tenant, name]).await?;
        let found = row.as_ref().map(read).transpose()?;
        let found = found.ok_or_else(|| StoreError::unavailable("an artifact was pruned in between"))?;
        if !inserted {
            let same = found.sha256 == content.sha256 && found.content_type == new.content_type;
            return Ok(if same { ArtifactPut::Same(found) } else { ArtifactPut::Exists });
        }
        content.keep(tx).await?;
        Ok(ArtifactPut::Stored(found))
    }
}

struct Replace {
    new: NewArtifact,
    content: Content,
    lost: String,
}

const REPLACE: Sql = Sql::both(&["update artifacts set content = $4, location = $5
     where job = $1 and name = $2 and tenant = $3 and location = $6"]);

impl Operation for Replace {
    type Output = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let Self { new, content, lost } = self;
        let (job, name, tenant) = (Param::from(new.job), Param::Text(new.name.as_str()), Param::Int(new.tenant.0));
        let [inline, location] = content.params();
        // Another upload of the same may have been first.
        if tx.execute(&REPLACE, &[job, name, tenant, inline, location, Param::Text(lost)]).await? == 0 {
            return Ok(false);
        }
        content.keep(tx).await?;
        // Should it come to light again, nobody names it.
        garbage::put_on_record(tx, lost).await?;
        Ok(true)
    }
}
