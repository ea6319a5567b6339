//! Files of the OpenAI-compatible API: upload and download as streams, lists of metadata, deletion.

use bytes::Bytes;
use domain::limits::FILE_BYTES;
use domain::{TenantId, Time};
use futures_util::Stream;
use futures_util::stream::BoxStream;

use crate::db::clock::new_uuid;
use crate::db::tx::{Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::queue::artifacts::Blobs;
use crate::queue::artifacts::content::{Content, ContentRejected, StoredContent};
use crate::runtimes::openai::{File, OpenAiBatch, file};
use crate::store::Store;

/// The metadata of a file to create.
#[derive(Clone, Debug)]
pub struct NewFile {
    pub filename: String,
    pub purpose: String,
    pub principal: String,
    /// Retention; until the file is deleted if `None`.
    pub retention_s: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileDeleted {
    Deleted,
    /// A batch has not read all of it yet.
    InUse,
    NotFound,
}

/// Selects the files of a page.
#[derive(Clone, Debug, Default)]
pub struct FileFilter {
    pub purpose: Option<String>,
    /// Only files of this principal.
    pub principal: Option<String>,
    /// Page cursor: the last id of the previous page.
    pub after: Option<String>,
}

impl Store {
    /// Receives the content of a file before its metadata is known.
    pub async fn receive_file<E>(
        &self,
        blobs: &Blobs,
        tenant: TenantId,
        body: impl Stream<Item = Result<Bytes, E>> + Send,
    ) -> Result<Result<Content, ContentRejected>, StoreError> {
        self.receive_content(blobs, tenant, FILE_BYTES, body).await
    }

    /// Creates a file with received content.
    pub async fn put_file(&self, tenant: TenantId, new: NewFile, content: Content) -> Result<File, StoreError> {
        self.write(PutFile { tenant, new, content }).await
    }

    /// Returns the metadata of a file that has not expired.
    pub async fn file(&self, tenant: TenantId, id: &str) -> Result<Option<File>, StoreError> {
        let found = self.read(GetFile { tenant, id: id.to_owned(), allow_expired: false }).await?;
        Ok(found.map(|(file, _, _)| file))
    }

    /// Returns up to `limit` files, newest first.
    pub async fn list_files(
        &self,
        tenant: TenantId,
        filter: FileFilter,
        limit: usize,
    ) -> Result<Vec<File>, StoreError> {
        self.read(ListFiles { tenant, filter, limit }).await
    }

    /// Returns the content of a file; `None` if the file does not exist.
    pub async fn file_content(
        &self,
        blobs: &Blobs,
        tenant: TenantId,
        id: &str,
    ) -> Result<Option<(File, BoxStream<'static, Result<Bytes, StoreError>>)>, StoreError> {
        match self.read(GetFile { tenant, id: id.to_owned(), allow_expired: false }).await? {
            Some((file, stored, sha256)) => Ok(Some((file, stored.stream(blobs, sha256).await?))),
            None => Ok(None),
        }
    }

    /// Returns the input of a batch. The file may have expired since the batch was created.
    pub async fn batch_input(
        &self,
        blobs: &Blobs,
        batch: &OpenAiBatch,
    ) -> Result<Option<BoxStream<'static, Result<Bytes, StoreError>>>, StoreError> {
        match self.read(GetFile { tenant: batch.tenant, id: batch.input_file.clone(), allow_expired: true }).await? {
            Some((_, stored, sha256)) => stored.stream(blobs, sha256).await.map(Some),
            None => Ok(None),
        }
    }

    /// Deletes a file, unless a batch still reads it.
    pub async fn delete_file(&self, tenant: TenantId, id: &str) -> Result<FileDeleted, StoreError> {
        self.write(DeleteFile { tenant, id: id.to_owned() }).await
    }
}

struct PutFile {
    tenant: TenantId,
    new: NewFile,
    content: Content,
}

const INSERT: Sql = Sql::both(&["insert into openai_files (id, tenant, filename, purpose, bytes, sha256, content,
         location, principal, created_at, expires_at)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"]);

/// Inserts a file within a transaction and returns it.
pub(super) async fn insert(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    new: &NewFile,
    content: &Content,
) -> Result<File, StoreError> {
    let now = tx.now();
    let id = format!("file-{}", new_uuid(now).simple());
    let expires_at: Option<Time> = new.retention_s.map(|seconds| now.plus_s(seconds));
    let [inline, location] = content.params();
    let params = [
        Param::Text(&id),
        Param::Int(tenant.0),
        Param::Text(&new.filename),
        Param::Text(&new.purpose),
        Param::Int(content.size as i64),
        Param::Blob(&content.sha256),
        inline,
        location,
        Param::Text(&new.principal),
        Param::Time(now),
        Param::time(expires_at),
    ];
    tx.execute(&INSERT, &params).await?;
    content.mark_referenced(tx).await?;
    Ok(File {
        id,
        filename: new.filename.clone(),
        purpose: new.purpose.clone(),
        bytes: content.size as i64,
        principal: new.principal.clone(),
        created_at: now,
        expires_at,
    })
}

impl Operation for PutFile {
    type Output = File;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<File, StoreError> {
        insert(tx, self.tenant, &self.new, &self.content).await
    }
}

struct GetFile {
    tenant: TenantId,
    id: String,
    /// An expired file counts as deleted even before it is pruned, except for a batch that reads it.
    allow_expired: bool,
}

const GET: Sql =
    Sql::both(&["select id, filename, purpose, bytes, principal, created_at, expires_at, sha256, content,
         location
     from openai_files where id = $1 and tenant = $2 and (expires_at is null or expires_at > $3)"]);

impl Operation for GetFile {
    type Output = Option<(File, StoredContent, [u8; 32])>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let expires_after = if self.allow_expired { Time::from_micros(0) } else { tx.now() };
        let params = [Param::Text(&self.id), Param::Int(self.tenant.0), Param::Time(expires_after)];
        tx.query_opt(&GET, &params).await?.as_ref().map(with_content).transpose()
    }
}

/// Reads a file with its digest and its content or location.
fn with_content(row: &Row) -> Result<(File, StoredContent, [u8; 32]), StoreError> {
    let sha256 = row.opt_blob("sha256")?.and_then(|digest| digest.try_into().ok());
    let sha256 = sha256.ok_or_else(|| StoreError::unexpected("a stored file has no SHA-256 digest"))?;
    Ok((file(row)?, StoredContent::read(row)?, sha256))
}

struct ListFiles {
    tenant: TenantId,
    filter: FileFilter,
    limit: usize,
}

// Ids begin with a letter, so `~` sorts after all of them.
const LIST: Sql = Sql::both(&["select id, filename, purpose, bytes, principal, created_at, expires_at
     from openai_files
     where tenant = $1 and id < coalesce($2, '~') and purpose = coalesce($3, purpose)
         and principal = coalesce($4, principal) and (expires_at is null or expires_at > $5)
     order by id desc limit $6"]);

impl Operation for ListFiles {
    type Output = Vec<File>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<File>, StoreError> {
        let params = [
            Param::Int(self.tenant.0),
            Param::text(self.filter.after.as_deref()),
            Param::text(self.filter.purpose.as_deref()),
            Param::text(self.filter.principal.as_deref()),
            Param::Time(tx.now()),
            Param::Int(self.limit as i64),
        ];
        tx.query(&LIST, &params).await?.iter().map(file).collect()
    }
}

struct DeleteFile {
    tenant: TenantId,
    id: String,
}

const READER: Sql = Sql::both(&["select id from openai_batches
     where ended_at is null and tenant = $1 and input_file = $2 and (status = 'validating' or made < total) limit 1"]);
const GARBAGE: Sql = Sql::both(&["insert into blob_garbage (location, since)
     select location, $3 from openai_files where id = $1 and tenant = $2 and location is not null
     on conflict do nothing"]);
const DELETE: Sql = Sql::both(&["delete from openai_files where id = $1 and tenant = $2"]);

impl Operation for DeleteFile {
    type Output = FileDeleted;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<FileDeleted, StoreError> {
        let (id, tenant) = (Param::Text(&self.id), Param::Int(self.tenant.0));
        if tx.query_opt(&READER, &[tenant, id]).await?.is_some() {
            return Ok(FileDeleted::InUse);
        }
        let now = Param::Time(tx.now());
        tx.execute(&GARBAGE, &[id, tenant, now]).await?;
        let is_deleted = tx.execute(&DELETE, &[id, tenant]).await? > 0;
        Ok(if is_deleted { FileDeleted::Deleted } else { FileDeleted::NotFound })
    }
}
