//! The steps of a batch. Each step is one transaction that checks the state of the batch, so any node may run it, and a
//! crash leaves no step half done. Called by the task that runs batches.

use bytes::Bytes;
use domain::limits::BATCH_OUTPUT_BYTES;
use domain::{JobError, JobId, JobState, Origin, TenantId};
use futures_util::Stream;

use crate::db::codec::{error_from_json, to_json};
use crate::db::effects::Effects;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::artifacts::Blobs;
use crate::queue::artifacts::content::Content;
use crate::queue::enqueue::{EnqueueBatch, EnqueueReply, EnqueueRequest, NewJob};
use crate::queue::lanes::Lane;
use crate::runtimes::openai::batches::{count, find};
use crate::runtimes::openai::files;
use crate::runtimes::openai::files::NewFile;
use crate::runtimes::openai::{BatchStatus, LineFault, OpenAiBatch};
use crate::store::Store;

/// The result of one line.
#[derive(Clone, Debug)]
pub struct LineResult {
    pub job: JobId,
    pub custom_id: String,
    pub state: JobState,
    /// JSON.
    pub result: Option<String>,
    pub error: Option<JobError>,
}

/// The stored content of an output file that has no row yet.
#[derive(Clone, Debug)]
pub struct WrittenFile {
    new: NewFile,
    content: Content,
}

impl Store {
    /// Records the validation of the input: the number of lines, or its errors.
    pub async fn validated_batch(
        &self,
        batch: &OpenAiBatch,
        verdict: Result<i64, Vec<LineFault>>,
    ) -> Result<(), StoreError> {
        self.write(RecordValidation { tenant: batch.tenant, id: batch.id.clone(), verdict }).await
    }

    /// Makes the jobs of the next lines, from line `from` on. Returns false if they were made before or the batch is
    /// not in progress, so that each line gets exactly one job.
    pub async fn make_batch_jobs(&self, batch: &OpenAiBatch, from: i64, jobs: Vec<NewJob>) -> Result<bool, StoreError> {
        let tenant = batch.tenant;
        let lanes: Vec<Lane> = jobs.iter().map(|job| job.lane(tenant)).collect();
        let ready = jobs.iter().map(|job| (tenant, job.queue.clone())).collect();
        let to = from + jobs.len() as i64;
        let lanes = self.lane_ids(&lanes).await?;
        let enqueue = EnqueueBatch::one(EnqueueRequest::new(tenant, jobs, lanes));
        let made = self.write(MakeBatchJobs { tenant, id: batch.id.clone(), from, to, enqueue }).await?;
        if made {
            self.announce(&Effects { ready, ..Effects::default() });
        }
        Ok(made)
    }

    /// Returns up to `limit` unfinished jobs of a batch.
    pub async fn live_batch_jobs(&self, batch: &OpenAiBatch, limit: usize) -> Result<Vec<JobId>, StoreError> {
        let (tenant, id) = (batch.tenant, batch.id.clone());
        self.read(ListLiveBatchJobs { tenant, id, origin_pattern: batch.origin_pattern(), limit }).await
    }

    /// Marks a batch whose lines have all ended as `finalizing`. Returns false if it is in another state.
    pub async fn finalize_batch(&self, batch: &OpenAiBatch) -> Result<bool, StoreError> {
        self.write(FinalizeBatch { tenant: batch.tenant, id: batch.id.clone() }).await
    }

    /// Returns up to `limit` ended lines in the order of their jobs, starting after `after`.
    pub async fn batch_results(
        &self,
        batch: &OpenAiBatch,
        after: Option<JobId>,
        limit: usize,
    ) -> Result<Vec<LineResult>, StoreError> {
        let (tenant, id) = (batch.tenant, batch.id.clone());
        self.read(ListBatchResults { tenant, id, origin_pattern: batch.origin_pattern(), after, limit }).await
    }

    /// Stores the lines of an output file. Returns `None` if there are none.
    pub async fn write_batch_file(
        &self,
        blobs: &Blobs,
        tenant: TenantId,
        new: NewFile,
        lines: impl Stream<Item = Result<Bytes, StoreError>> + Send,
    ) -> Result<Option<WrittenFile>, StoreError> {
        match self.receive_content(blobs, tenant, BATCH_OUTPUT_BYTES, lines).await? {
            Ok(content) if content.size == 0 => Ok(None),
            Ok(content) => Ok(Some(WrittenFile { new, content })),
            Err(_) => Err(StoreError::unavailable("the output of a batch could not be stored")),
        }
    }

    /// Ends a batch with its output files. Returns false and deletes the files if the batch has changed since `batch`
    /// was read.
    pub async fn end_batch(
        &self,
        blobs: &Blobs,
        batch: &OpenAiBatch,
        status: BatchStatus,
        output: Option<WrittenFile>,
        errors: Option<WrittenFile>,
    ) -> Result<bool, StoreError> {
        let (from, made, written) = (batch.status, batch.made, [output, errors]);
        let end = EndBatch { tenant: batch.tenant, id: batch.id.clone(), from, made, status, written: written.clone() };
        let ended = self.write(end).await?;
        if !ended {
            for file in written.into_iter().flatten() {
                self.discard(blobs, file.content).await;
            }
        }
        Ok(ended)
    }
}

/// Locks and reads a batch.
async fn lock(tx: &mut Tx<'_>, tenant: TenantId, id: &str) -> Result<Option<OpenAiBatch>, StoreError> {
    tx.lock(&[&format!("windlass batch {id}")]).await?;
    find(tx, tenant, id).await
}

struct RecordValidation {
    tenant: TenantId,
    id: String,
    verdict: Result<i64, Vec<LineFault>>,
}

const BEGIN: Sql = Sql::both(&["update openai_batches set status = 'in_progress', total = $2, in_progress_at = $3
     where id = $1 and status = 'validating'"]);
const REFUSE: Sql = Sql::both(&["update openai_batches set status = 'failed', errors = $2, ended_at = $3
     where id = $1 and status = 'validating'"]);

impl Operation for RecordValidation {
    type Output = ();

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        lock(tx, self.tenant, &self.id).await?;
        let (id, now) = (Param::Text(&self.id), Param::Time(tx.now()));
        match &self.verdict {
            Ok(total) => tx.execute(&BEGIN, &[id, Param::Int(*total), now]).await?,
            Err(faults) => tx.execute(&REFUSE, &[id, Param::Json(&to_json(faults)), now]).await?,
        };
        Ok(())
    }
}

struct MakeBatchJobs {
    tenant: TenantId,
    id: String,
    from: i64,
    to: i64,
    enqueue: EnqueueBatch,
}

const MADE: Sql = Sql::both(&["update openai_batches set made = $2 where id = $1"]);

impl Operation for MakeBatchJobs {
    type Output = bool;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let batch = lock(tx, self.tenant, &self.id).await?;
        let is_next = |batch: &OpenAiBatch| batch.status == BatchStatus::InProgress && batch.made == self.from;
        if !batch.as_ref().is_some_and(is_next) {
            return Ok(false);
        }
        let accepted = matches!(self.enqueue.run(tx).await?.pop(), Some(EnqueueReply::Accepted(_)));
        if !accepted {
            return Err(StoreError::unexpected("the enqueue of a batch's jobs was refused"));
        }
        tx.execute(&MADE, &[Param::Text(&self.id), Param::Int(self.to)]).await?;
        Ok(true)
    }
}

struct ListLiveBatchJobs {
    tenant: TenantId,
    id: String,
    origin_pattern: String,
    limit: usize,
}

const LIVE: Sql = Sql::both(&["select id from jobs where tenant = $1 and run = $2 and triggered_by like $3
     order by id limit $4"]);

impl Operation for ListLiveBatchJobs {
    type Output = Vec<JobId>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<JobId>, StoreError> {
        let params = [
            Param::Int(self.tenant.0),
            Param::Text(&self.id),
            Param::Text(&self.origin_pattern),
            Param::Int(self.limit as i64),
        ];
        tx.query(&LIVE, &params).await?.iter().map(|row| row.job("id")).collect()
    }
}

struct FinalizeBatch {
    tenant: TenantId,
    id: String,
}

const FINALIZE: Sql = Sql::both(&["update openai_batches set status = 'finalizing', finalizing_at = $2
     where id = $1 and status = 'in_progress'"]);

impl Operation for FinalizeBatch {
    type Output = bool;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        lock(tx, self.tenant, &self.id).await?;
        let now = Param::Time(tx.now());
        tx.execute(&FINALIZE, &[Param::Text(&self.id), now]).await?;
        let batch = find(tx, self.tenant, &self.id).await?;
        Ok(batch.is_some_and(|batch| batch.status == BatchStatus::Finalizing))
    }
}

struct ListBatchResults {
    tenant: TenantId,
    id: String,
    origin_pattern: String,
    after: Option<JobId>,
    limit: usize,
}

const RESULTS: Sql = Sql::both(&["select id, state, triggered_by, result, error from ended
     where tenant = $1 and run = $2 and id > $3 and triggered_by like $4 order by id limit $5"]);

impl Operation for ListBatchResults {
    type Output = Vec<LineResult>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<LineResult>, StoreError> {
        let params = [
            Param::Int(self.tenant.0),
            Param::Text(&self.id),
            Param::Uuid(self.after.map_or(uuid::Uuid::nil(), JobId::uuid)),
            Param::Text(&self.origin_pattern),
            Param::Int(self.limit as i64),
        ];
        let mut results = Vec::new();
        for row in tx.query(&RESULTS, &params).await? {
            let Origin::Batch { custom_id, .. } = Origin::parse(row.opt_text("triggered_by")?.as_deref()) else {
                continue;
            };
            let state = row.text("state")?;
            results.push(LineResult {
                job: row.job("id")?,
                custom_id,
                state: JobState::parse(&state).ok_or_else(|| StoreError::unexpected(format!("state {state}")))?,
                result: row.opt_text("result")?,
                error: row.opt_text("error")?.map(|text| error_from_json(&text)).transpose()?,
            });
        }
        Ok(results)
    }
}

struct EndBatch {
    tenant: TenantId,
    id: String,
    from: BatchStatus,
    /// Lines with jobs when the files were written. If more have been made since, the files are incomplete.
    made: i64,
    status: BatchStatus,
    /// The output file and the error file.
    written: [Option<WrittenFile>; 2],
}

const END: Sql = Sql::both(&[
    "update openai_batches set status = $2, output_file = $3, error_file = $4, completed = $5, failed = $6,
         ended_at = $7
     where id = $1",
]);

impl Operation for EndBatch {
    type Output = bool;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let batch = lock(tx, self.tenant, &self.id).await?;
        let is_unchanged =
            |batch: &OpenAiBatch| batch.status == self.from && batch.made == self.made && batch.ended_at.is_none();
        let Some(batch) = batch.filter(is_unchanged) else {
            return Ok(false);
        };
        let (completed, _) = count(tx, &batch).await?;
        let mut files: [Option<String>; 2] = [None, None];
        for (index, written) in self.written.iter().enumerate() {
            if let Some(WrittenFile { new, content }) = written {
                files[index] = Some(files::insert(tx, self.tenant, new, content).await?.id);
            }
        }
        let params = [
            Param::Text(&self.id),
            Param::Text(self.status.as_str()),
            Param::text(files[0].as_deref()),
            Param::text(files[1].as_deref()),
            Param::Int(completed),
            Param::Int(batch.total - completed),
            Param::Time(tx.now()),
        ];
        tx.execute(&END, &params).await?;
        Ok(true)
    }
}
