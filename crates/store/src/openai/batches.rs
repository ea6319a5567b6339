//! Batches: made, looked at, called off.

use domain::TenantId;

use crate::clock::new_uuid;
use crate::error::StoreError;
use crate::hints::Topic;
use crate::openai::{Batch, BatchStatus, batch};
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

#[derive(Clone, Debug)]
pub struct NewBatch {
    pub endpoint: String,
    pub input_file: String,
    pub completion_window: String,
    pub window_s: i64,
    /// JSON.
    pub metadata: Option<String>,
    pub files_kept_s: Option<i64>,
    pub principal: String,
}

#[derive(Clone, Debug)]
pub enum BatchCanceled {
    /// It was asked for, now or before.
    Asked(Box<Batch>),
    /// It has ended otherwise.
    Ended(BatchStatus),
    NotFound,
}

impl Store {
    pub async fn create_batch(&self, tenant: TenantId, new: NewBatch) -> Result<Batch, StoreError> {
        let made = self.write(Create { tenant, new }).await?;
        self.hints().wake(&Topic::Batches);
        Ok(made)
    }

    pub async fn batch(&self, tenant: TenantId, id: &str) -> Result<Option<Batch>, StoreError> {
        self.read(Get { tenant, id: id.to_owned() }).await
    }

    /// Newest first, after `after`; of one principal alone, if one is named.
    pub async fn list_batches(
        &self,
        tenant: TenantId,
        after: Option<String>,
        principal: Option<String>,
        limit: usize,
    ) -> Result<Vec<Batch>, StoreError> {
        self.read(List { tenant, after, principal, limit }).await
    }

    /// Those that something is to be done for, of every tenant, oldest first, after `after`.
    pub async fn open_batches(&self, after: &str, limit: usize) -> Result<Vec<Batch>, StoreError> {
        self.read(Open { after: after.to_owned(), limit }).await
    }

    /// Asks for its end; what is done by then is kept.
    pub async fn cancel_batch(&self, tenant: TenantId, id: &str) -> Result<BatchCanceled, StoreError> {
        let canceled = self.write(Cancel { tenant, id: id.to_owned() }).await?;
        self.hints().wake(&Topic::Batches);
        Ok(canceled)
    }
}

struct Create {
    tenant: TenantId,
    new: NewBatch,
}

const INSERT: Sql =
    Sql::both(&["insert into openai_batches (id, tenant, endpoint, input_file, completion_window, status,
         metadata, errors, files_kept_s, principal, created_at, expires_at)
     values ($1, $2, $3, $4, $5, 'validating', $6, '[]', $7, $8, $9, $10)"]);
const GET: Sql = Sql::both(&["select id, tenant, endpoint, input_file, completion_window, status, metadata, errors,
         output_file, error_file, files_kept_s, total, made, completed, failed, principal, created_at, expires_at,
         in_progress_at, finalizing_at, cancelling_at, ended_at
     from openai_batches where id = $1 and tenant = $2"]);
const LIST: Sql = Sql::both(&["select id, tenant, endpoint, input_file, completion_window, status, metadata, errors,
         output_file, error_file, files_kept_s, total, made, completed, failed, principal, created_at, expires_at,
         in_progress_at, finalizing_at, cancelling_at, ended_at
     from openai_batches
     where tenant = $1 and id < coalesce($2, '~') and principal = coalesce($3, principal) order by id desc limit $4"]);
const OPEN: Sql = Sql::both(&["select id, tenant, endpoint, input_file, completion_window, status, metadata, errors,
         output_file, error_file, files_kept_s, total, made, completed, failed, principal, created_at, expires_at,
         in_progress_at, finalizing_at, cancelling_at, ended_at
     from openai_batches where ended_at is null and id > $1 order by id limit $2"]);
const CANCEL: Sql = Sql::both(&["update openai_batches set status = 'cancelling', cancelling_at = $3
     where id = $1 and tenant = $2 and ended_at is null and cancelling_at is null"]);
const ENDED: Sql = Sql::both(&["select state, count(*) from ended
     where tenant = $1 and run = $2 and triggered_by like $3 group by state"]);

pub(super) async fn find(tx: &mut Tx<'_>, tenant: TenantId, id: &str) -> Result<Option<Batch>, StoreError> {
    let row = tx.query_opt(&GET, &[Param::Text(id), Param::Int(tenant.0)]).await?;
    row.as_ref().map(batch).transpose()
}

/// How many lines of a batch have succeeded, and how many have ended otherwise.
pub(super) async fn count(tx: &mut Tx<'_>, batch: &Batch) -> Result<(i64, i64), StoreError> {
    let (mut completed, mut failed) = (0, 0);
    let origins = batch.origins();
    let params = [Param::Int(batch.tenant.0), Param::Text(&batch.id), Param::Text(&origins)];
    for row in tx.query(&ENDED, &params).await? {
        match row.text(0)?.as_str() {
            "succeeded" => completed += row.int(1)?,
            _ => failed += row.int(1)?,
        }
    }
    Ok((completed, failed))
}

/// What is under way is counted when somebody looks; an ended batch has its figures written down.
async fn counted(tx: &mut Tx<'_>, batch: Batch) -> Result<Batch, StoreError> {
    if batch.ended_at.is_some() || batch.made == 0 {
        return Ok(batch);
    }
    let (completed, failed) = count(tx, &batch).await?;
    Ok(Batch { completed, failed, ..batch })
}

impl Operation for Create {
    type Output = Batch;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Batch, StoreError> {
        let now = tx.now();
        let id = format!("batch_{}", new_uuid(now).simple());
        let params = [
            Param::Text(&id),
            Param::Int(self.tenant.0),
            Param::Text(&self.new.endpoint),
            Param::Text(&self.new.input_file),
            Param::Text(&self.new.completion_window),
            Param::json(self.new.metadata.as_deref()),
            Param::int(self.new.files_kept_s),
            Param::Text(&self.new.principal),
            Param::Time(now),
            Param::Time(now.plus_s(self.new.window_s)),
        ];
        tx.execute(&INSERT, &params).await?;
        let made = find(tx, self.tenant, &id).await?;
        made.ok_or_else(|| StoreError::unexpected("a batch that was made is not there"))
    }
}

struct Get {
    tenant: TenantId,
    id: String,
}

impl Operation for Get {
    type Output = Option<Batch>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<Batch>, StoreError> {
        match find(tx, self.tenant, &self.id).await? {
            Some(batch) => counted(tx, batch).await.map(Some),
            None => Ok(None),
        }
    }
}

struct List {
    tenant: TenantId,
    after: Option<String>,
    principal: Option<String>,
    limit: usize,
}

impl Operation for List {
    type Output = Vec<Batch>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Batch>, StoreError> {
        let params = [
            Param::Int(self.tenant.0),
            Param::text(self.after.as_deref()),
            Param::text(self.principal.as_deref()),
            Param::Int(self.limit as i64),
        ];
        let mut batches = Vec::new();
        for row in tx.query(&LIST, &params).await? {
            batches.push(counted(tx, batch(&row)?).await?);
        }
        Ok(batches)
    }
}

struct Open {
    after: String,
    limit: usize,
}

impl Operation for Open {
    type Output = Vec<Batch>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Batch>, StoreError> {
        tx.query(&OPEN, &[Param::Text(&self.after), Param::Int(self.limit as i64)]).await?.iter().map(batch).collect()
    }
}

struct Cancel {
    tenant: TenantId,
    id: String,
}

impl Operation for Cancel {
    type Output = BatchCanceled;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<BatchCanceled, StoreError> {
        let now = Param::Time(tx.now());
        tx.execute(&CANCEL, &[Param::Text(&self.id), Param::Int(self.tenant.0), now]).await?;
        Ok(match find(tx, self.tenant, &self.id).await? {
            Some(batch) if batch.cancelling_at.is_some() => BatchCanceled::Asked(Box::new(counted(tx, batch).await?)),
            Some(batch) => BatchCanceled::Ended(batch.status),
            None => BatchCanceled::NotFound,
        })
    }
}
