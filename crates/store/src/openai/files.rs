//! Files: streamed in and out, listed without their content.

use bytes::Bytes;
use domain::limits::FILE_BYTES;
use domain::{TenantId, Time};
use futures_util::Stream;
use futures_util::stream::BoxStream;

use crate::artifacts::Blobs;
use crate::artifacts::content::{Content, Kept, Unfit};
use crate::clock::new_uuid;
use crate::error::StoreError;
use crate::openai::{Batch, File, file};
use crate::store::Store;
use crate::tx::{Operation, Param, Row, Sql, Tx};

#[derive(Clone, Debug)]
pub struct NewFile {
    pub filename: String,
    pub purpose: String,
    pub principal: String,
    /// Until it is deleted, when `None`.
    pub kept_s: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileDeleted {
    Deleted,
    /// A batch has yet to read it.
    InUse,
    NotFound,
}

/// Which files a page shows.
#[derive(Clone, Debug, Default)]
pub struct FileFilter {
    pub purpose: Option<String>,
    /// Only what this principal made.
    pub principal: Option<String>,
    /// Only what comes after this id.
    pub after: Option<String>,
}

impl Store {
    /// Reads a file's content to its end, before it is known what file it is.
    pub async fn take_file<E>(
        &self,
        blobs: &Blobs,
        tenant: TenantId,
        body: impl Stream<Item = Result<Bytes, E>> + Send,
    ) -> Result<Result<Content, Unfit>, StoreError> {
        self.take_in(blobs, tenant, FILE_BYTES, body).await
    }

    pub async fn put_file(&self, tenant: TenantId, new: NewFile, content: Content) -> Result<File, StoreError> {
        self.write(Put { tenant, new, content }).await
    }

    pub async fn file(&self, tenant: TenantId, id: &str) -> Result<Option<File>, StoreError> {
        let found = self.read(Get { tenant, id: id.to_owned(), by_a_batch: false }).await?;
        Ok(found.map(|(file, _, _)| file))
    }

    /// Newest first.
    pub async fn list_files(
        &self,
        tenant: TenantId,
        filter: FileFilter,
        limit: usize,
    ) -> Result<Vec<File>, StoreError> {
        self.read(List { tenant, filter, limit }).await
    }

    /// What is in it; `None` where there is no such file.
    pub async fn file_content(
        &self,
        blobs: &Blobs,
        tenant: TenantId,
        id: &str,
    ) -> Result<Option<(File, BoxStream<'static, Result<Bytes, StoreError>>)>, StoreError> {
        match self.read(Get { tenant, id: id.to_owned(), by_a_batch: false }).await? {
            Some((file, kept, sha256)) => Ok(Some((file, kept.stream(blobs, sha256).await?))),
            None => Ok(None),
        }
    }

    /// What a batch reads. Its file's time may be up: it was not when the batch was made.
    pub async fn batch_input(
        &self,
        blobs: &Blobs,
        batch: &Batch,
    ) -> Result<Option<BoxStream<'static, Result<Bytes, StoreError>>>, StoreError> {
        match self.read(Get { tenant: batch.tenant, id: batch.input_file.clone(), by_a_batch: true }).await? {
            Some((_, kept, sha256)) => kept.stream(blobs, sha256).await.map(Some),
            None => Ok(None),
        }
    }

    pub async fn delete_file(&self, tenant: TenantId, id: &str) -> Result<FileDeleted, StoreError> {
        self.write(Delete { tenant, id: id.to_owned() }).await
    }
}

struct Put {
    tenant: TenantId,
    new: NewFile,
    content: Content,
}

const INSERT: Sql = Sql::both(&["insert into openai_files (id, tenant, filename, purpose, bytes, sha256, content,
         location, principal, created_at, expires_at)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"]);

/// Writes a file within a transaction and gives it.
pub(super) async fn insert(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    new: &NewFile,
    content: &Content,
) -> Result<File, StoreError> {
    let now = tx.now();
    let id = format!("file-{}", new_uuid(now).simple());
    let expires_at: Option<Time> = new.kept_s.map(|seconds| now.plus_s(seconds));
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
    content.keep(tx).await?;
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

impl Operation for Put {
    type Output = File;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<File, StoreError> {
        insert(tx, self.tenant, &self.new, &self.content).await
    }
}

struct Get {
    tenant: TenantId,
    id: String,
    /// One whose time is up is gone, pruned or not, but for a batch that reads it.
    by_a_batch: bool,
}

const GET: Sql =
    Sql::both(&["select id, filename, purpose, bytes, principal, created_at, expires_at, sha256, content,
         location
     from openai_files where id = $1 and tenant = $2 and (expires_at is null or expires_at > $3)"]);

impl Operation for Get {
    type Output = Option<(File, Kept, [u8; 32])>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let since = if self.by_a_batch { Time::from_micros(0) } else { tx.now() };
        let params = [Param::Text(&self.id), Param::Int(self.tenant.0), Param::Time(since)];
        tx.query_opt(&GET, &params).await?.as_ref().map(with_content).transpose()
    }
}

/// From ten columns: a file, its digest and where its content is.
fn with_content(row: &Row) -> Result<(File, Kept, [u8; 32]), StoreError> {
    let sha256 = row.opt_blob(7)?.and_then(|digest| digest.try_into().ok());
    let sha256 = sha256.ok_or_else(|| StoreError::unexpected("a file without its digest"))?;
    Ok((file(row)?, Kept::read(row, 8, 9)?, sha256))
}

struct List {
    tenant: TenantId,
    filter: FileFilter,
    limit: usize,
}

// Ids begin with a letter: `~` comes after all of them.
const LIST: Sql = Sql::both(&["select id, filename, purpose, bytes, principal, created_at, expires_at
     from openai_files
     where tenant = $1 and id < coalesce($2, '~') and purpose = coalesce($3, purpose)
         and principal = coalesce($4, principal) and (expires_at is null or expires_at > $5)
     order by id desc limit $6"]);

impl Operation for List {
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

struct Delete {
    tenant: TenantId,
    id: String,
}

const READER: Sql = Sql::both(&["select id from openai_batches
     where ended_at is null and tenant = $1 and input_file = $2 and (status = 'validating' or made < total) limit 1"]);
const GARBAGE: Sql = Sql::both(&["insert into blob_garbage (location, since)
     select location, $3 from openai_files where id = $1 and tenant = $2 and location is not null
     on conflict do nothing"]);
const DELETE: Sql = Sql::both(&["delete from openai_files where id = $1 and tenant = $2"]);

impl Operation for Delete {
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
        let gone = tx.execute(&DELETE, &[id, tenant]).await? > 0;
        Ok(if gone { FileDeleted::Deleted } else { FileDeleted::NotFound })
    }
}
