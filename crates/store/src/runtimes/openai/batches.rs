//! Creates, reads and cancels batches.

use domain::TenantId;

use crate::db::clock::new_uuid;
use crate::db::notifier::Topic;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::runtimes::openai::{BatchStatus, OpenAiBatch, batch};
use crate::store::Store;

/// A batch to create.
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
    /// The cancel was requested, now or before.
    Requested(Box<OpenAiBatch>),
    /// The batch has ended without a cancel.
    Ended(BatchStatus),
    NotFound,
}

impl Store {
    /// Creates a batch in the status `validating`.
    pub async fn create_batch(&self, tenant: TenantId, new: NewBatch) -> Result<OpenAiBatch, StoreError> {
        let batch = self.write(CreateBatch { tenant, new }).await?;
        self.notifier().notify_local(&Topic::Batches);
        Ok(batch)
    }

    pub async fn batch(&self, tenant: TenantId, id: &str) -> Result<Option<OpenAiBatch>, StoreError> {
        self.read(GetBatch { tenant, id: id.to_owned() }).await
    }

    /// Returns up to `limit` batches after `after`, newest first, optionally of one principal.
    pub async fn list_batches(
        &self,
        tenant: TenantId,
        after: Option<String>,
        principal: Option<String>,
        limit: usize,
    ) -> Result<Vec<OpenAiBatch>, StoreError> {
        self.read(ListBatches { tenant, after, principal, limit }).await
    }

    /// Returns the open batches of every tenant, oldest first, starting after `after`. Called by the task that runs
    /// batches.
    pub async fn open_batches(&self, after: &str, limit: usize) -> Result<Vec<OpenAiBatch>, StoreError> {
        self.read(ListOpenBatches { after: after.to_owned(), limit }).await
    }

    /// Requests the cancel of a batch. Results of lines that have ended by then are in its files.
    pub async fn cancel_batch(&self, tenant: TenantId, id: &str) -> Result<BatchCanceled, StoreError> {
        let canceled = self.write(CancelBatch { tenant, id: id.to_owned() }).await?;
        self.notifier().notify_local(&Topic::Batches);
        Ok(canceled)
    }
}

struct CreateBatch {
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
const ENDED: Sql = Sql::both(&["select state, count(*) as jobs from ended
     where tenant = $1 and run = $2 and triggered_by like $3 group by state"]);

/// Reads a batch within a transaction, with the counts as stored.
pub(super) async fn find(tx: &mut Tx<'_>, tenant: TenantId, id: &str) -> Result<Option<OpenAiBatch>, StoreError> {
    let row = tx.query_opt(&GET, &[Param::Text(id), Param::Int(tenant.0)]).await?;
    row.as_ref().map(batch).transpose()
}

/// Returns how many lines of a batch have succeeded and how many have ended otherwise.
pub(super) async fn count(tx: &mut Tx<'_>, batch: &OpenAiBatch) -> Result<(i64, i64), StoreError> {
    let (mut completed, mut failed) = (0, 0);
    let pattern = batch.origin_pattern();
    let params = [Param::Int(batch.tenant.0), Param::Text(&batch.id), Param::Text(&pattern)];
    for row in tx.query(&ENDED, &params).await? {
        match row.text("state")?.as_str() {
            "succeeded" => completed += row.int("jobs")?,
            _ => failed += row.int("jobs")?,
        }
    }
    Ok((completed, failed))
}

/// Fills in the counts of a batch. An open batch is counted on read; an ended one has its counts stored.
async fn with_counts(tx: &mut Tx<'_>, batch: OpenAiBatch) -> Result<OpenAiBatch, StoreError> {
    if batch.ended_at.is_some() || batch.made == 0 {
        return Ok(batch);
    }
    let (completed, failed) = count(tx, &batch).await?;
    Ok(OpenAiBatch { completed, failed, ..batch })
}

impl Operation for CreateBatch {
    type Output = OpenAiBatch;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<OpenAiBatch, StoreError> {
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
        let batch = find(tx, self.tenant, &id).await?;
        batch.ok_or_else(|| StoreError::unexpected("the new batch is missing"))
    }
}

struct GetBatch {
    tenant: TenantId,
    id: String,
}

impl Operation for GetBatch {
    type Output = Option<OpenAiBatch>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<OpenAiBatch>, StoreError> {
        match find(tx, self.tenant, &self.id).await? {
            Some(batch) => with_counts(tx, batch).await.map(Some),
            None => Ok(None),
        }
    }
}

struct ListBatches {
    tenant: TenantId,
    after: Option<String>,
    principal: Option<String>,
    limit: usize,
}

impl Operation for ListBatches {
    type Output = Vec<OpenAiBatch>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<OpenAiBatch>, StoreError> {
        let params = [
            Param::Int(self.tenant.0),
            Param::text(self.after.as_deref()),
            Param::text(self.principal.as_deref()),
            Param::Int(self.limit as i64),
        ];
        let mut batches = Vec::new();
        for row in tx.query(&LIST, &params).await? {
            batches.push(with_counts(tx, batch(&row)?).await?);
        }
        Ok(batches)
    }
}

struct ListOpenBatches {
    after: String,
    limit: usize,
}

impl Operation for ListOpenBatches {
    type Output = Vec<OpenAiBatch>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<OpenAiBatch>, StoreError> {
        tx.query(&OPEN, &[Param::Text(&self.after), Param::Int(self.limit as i64)]).await?.iter().map(batch).collect()
    }
}

struct CancelBatch {
    tenant: TenantId,
    id: String,
}

impl Operation for CancelBatch {
    type Output = BatchCanceled;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<BatchCanceled, StoreError> {
        let now = Param::Time(tx.now());
        tx.execute(&CANCEL, &[Param::Text(&self.id), Param::Int(self.tenant.0), now]).await?;
        Ok(match find(tx, self.tenant, &self.id).await? {
            Some(batch) if batch.cancelling_at.is_some() => {
                BatchCanceled::Requested(Box::new(with_counts(tx, batch).await?))
            }
            Some(batch) => BatchCanceled::Ended(batch.status),
            None => BatchCanceled::NotFound,
        })
    }
}
