//! What moves a batch on: each step is one transaction that looks where the batch stands, so that any node may take it and
//! a node that dies leaves nothing half done.

use bytes::Bytes;
use domain::limits::BATCH_OUTPUT_BYTES;
use domain::{JobError, JobId, JobState, Origin, TenantId};
use futures_util::Stream;

use crate::artifacts::Blobs;
use crate::artifacts::content::Content;
use crate::codec::{error_from_json, to_json};
use crate::effects::Effects;
use crate::error::StoreError;
use crate::jobs::enqueue::{EnqueueBatch, EnqueueReply, EnqueueRequest, NewJob};
use crate::lanes::Lane;
use crate::openai::batches::{count, find};
use crate::openai::files::{self, NewFile};
use crate::openai::{Batch, BatchStatus, LineFault};
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

/// How one line ended.
#[derive(Clone, Debug)]
pub struct LineResult {
    pub job: JobId,
    pub custom_id: String,
    pub state: JobState,
    /// JSON.
    pub result: Option<String>,
    pub error: Option<JobError>,
}

/// A file that a batch has written and that no row names yet.
#[derive(Clone, Debug)]
pub struct Written {
    new: NewFile,
    content: Content,
}

impl Store {
    /// The input was read: how many lines it has, or what is wrong with it.
    pub async fn validated_batch(&self, batch: &Batch, verdict: Result<i64, Vec<LineFault>>) -> Result<(), StoreError> {
        self.write(Validated { tenant: batch.tenant, id: batch.id.clone(), verdict }).await
    }

    /// Makes the jobs of the next lines, from line `from` on, exactly once. Whether this call did.
    pub async fn make_batch_jobs(&self, batch: &Batch, from: i64, jobs: Vec<NewJob>) -> Result<bool, StoreError> {
        let tenant = batch.tenant;
        let lanes: Vec<Lane> = jobs.iter().map(|job| job.lane(tenant)).collect();
        let ready = jobs.iter().map(|job| (tenant, job.queue.clone())).collect();
        let to = from + jobs.len() as i64;
        let lanes = self.lane_ids(&lanes).await?;
        let enqueue = EnqueueBatch::one(EnqueueRequest::new(tenant, jobs, lanes));
        let made = self.write(Make { tenant, id: batch.id.clone(), from, to, enqueue }).await?;
        if made {
            self.announce(&Effects { ready, ..Effects::default() });
        }
        Ok(made)
    }

    /// Jobs of a batch that have not ended.
    pub async fn live_batch_jobs(&self, batch: &Batch, limit: usize) -> Result<Vec<JobId>, StoreError> {
        self.read(Live { tenant: batch.tenant, id: batch.id.clone(), origins: batch.origins(), limit }).await
    }

    /// Every line has ended: its files are written now. Whether it is still to be.
    pub async fn finalize_batch(&self, batch: &Batch) -> Result<bool, StoreError> {
        self.write(Finalize { tenant: batch.tenant, id: batch.id.clone() }).await
    }

    /// Lines that have ended, in the order of their jobs, after `after`.
    pub async fn batch_results(
        &self,
        batch: &Batch,
        after: Option<JobId>,
        limit: usize,
    ) -> Result<Vec<LineResult>, StoreError> {
        let (tenant, id) = (batch.tenant, batch.id.clone());
        self.read(Results { tenant, id, origins: batch.origins(), after, limit }).await
    }

    /// Takes the lines of a file in; nothing where there are none.
    pub async fn write_batch_file(
        &self,
        blobs: &Blobs,
        tenant: TenantId,
        new: NewFile,
        lines: impl Stream<Item = Result<Bytes, StoreError>> + Send,
    ) -> Result<Option<Written>, StoreError> {
        match self.take_in(blobs, tenant, BATCH_OUTPUT_BYTES, lines).await? {
            Ok(content) if content.size == 0 => Ok(None),
            Ok(content) => Ok(Some(Written { new, content })),
            Err(_) => Err(StoreError::unavailable("the files of a batch could not be written")),
        }
    }

    /// Ends a batch with its files, unless it has moved on since it was read as `batch`.
    pub async fn end_batch(
        &self,
        blobs: &Blobs,
        batch: &Batch,
        status: BatchStatus,
        output: Option<Written>,
        errors: Option<Written>,
    ) -> Result<bool, StoreError> {
        let (from, made, written) = (batch.status, batch.made, [output, errors]);
        let end = End { tenant: batch.tenant, id: batch.id.clone(), from, made, status, written: written.clone() };
        let ended = self.write(end).await?;
        if !ended {
            for file in written.into_iter().flatten() {
                self.discard(blobs, file.content).await;
            }
        }
        Ok(ended)
    }
}

async fn lock(tx: &mut Tx<'_>, tenant: TenantId, id: &str) -> Result<Option<Batch>, StoreError> {
    tx.lock(&[&format!("windlass batch {id}")]).await?;
    find(tx, tenant, id).await
}

struct Validated {
    tenant: TenantId,
    id: String,
    verdict: Result<i64, Vec<LineFault>>,
}

const BEGIN: Sql = Sql::both(&["update openai_batches set status = 'in_progress', total = $2, in_progress_at = $3
     where id = $1 and status = 'validating'"]);
const REFUSE: Sql = Sql::both(&["update openai_batches set status = 'failed', errors = $2, ended_at = $3
     where id = $1 and status = 'validating'"]);

impl Operation for Validated {
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

struct Make {
    tenant: TenantId,
    id: String,
    from: i64,
    to: i64,
    enqueue: EnqueueBatch,
}

const MADE: Sql = Sql::both(&["update openai_batches set made = $2 where id = $1"]);

impl Operation for Make {
    type Output = bool;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let batch = lock(tx, self.tenant, &self.id).await?;
        let is_next = |batch: &Batch| batch.status == BatchStatus::InProgress && batch.made == self.from;
        if !batch.as_ref().is_some_and(is_next) {
            return Ok(false);
        }
        let accepted = matches!(self.enqueue.run(tx).await?.pop(), Some(EnqueueReply::Accepted(_)));
        if !accepted {
            return Err(StoreError::unexpected("a batch made no jobs"));
        }
        tx.execute(&MADE, &[Param::Text(&self.id), Param::Int(self.to)]).await?;
        Ok(true)
    }
}

struct Live {
    tenant: TenantId,
    id: String,
    origins: String,
    limit: usize,
}

const LIVE: Sql = Sql::both(&["select id from jobs where tenant = $1 and run = $2 and triggered_by like $3
     order by id limit $4"]);

impl Operation for Live {
    type Output = Vec<JobId>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<JobId>, StoreError> {
        let params = [
            Param::Int(self.tenant.0),
            Param::Text(&self.id),
            Param::Text(&self.origins),
            Param::Int(self.limit as i64),
        ];
        tx.query(&LIVE, &params).await?.iter().map(|row| row.job(0)).collect()
    }
}

struct Finalize {
    tenant: TenantId,
    id: String,
}

const FINALIZE: Sql = Sql::both(&["update openai_batches set status = 'finalizing', finalizing_at = $2
     where id = $1 and status = 'in_progress'"]);

impl Operation for Finalize {
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

struct Results {
    tenant: TenantId,
    id: String,
    origins: String,
    after: Option<JobId>,
    limit: usize,
}

const RESULTS: Sql = Sql::both(&["select id, state, triggered_by, result, error from ended
     where tenant = $1 and run = $2 and id > $3 and triggered_by like $4 order by id limit $5"]);

impl Operation for Results {
    type Output = Vec<LineResult>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<LineResult>, StoreError> {
        let params = [
            Param::Int(self.tenant.0),
            Param::Text(&self.id),
            Param::Uuid(self.after.map_or(uuid::Uuid::nil(), JobId::uuid)),
            Param::Text(&self.origins),
            Param::Int(self.limit as i64),
        ];
        let mut results = Vec::new();
        for row in tx.query(&RESULTS, &params).await? {
            let Origin::Batch { custom_id, .. } = Origin::parse(row.opt_text(2)?.as_deref()) else { continue };
            let state = row.text(1)?;
            results.push(LineResult {
                job: row.job(0)?,
                custom_id,
                state: JobState::parse(&state).ok_or_else(|| StoreError::unexpected(format!("state {state}")))?,
                result: row.opt_text(3)?,
                error: row.opt_text(4)?.map(|text| error_from_json(&text)).transpose()?,
            });
        }
        Ok(results)
    }
}

struct End {
    tenant: TenantId,
    id: String,
    from: BatchStatus,
    /// Lines with jobs: one more that was made meanwhile is in none of the files.
    made: i64,
    status: BatchStatus,
    /// Output and errors.
    written: [Option<Written>; 2],
}

const END: Sql = Sql::both(&[
    "update openai_batches set status = $2, output_file = $3, error_file = $4, completed = $5, failed = $6,
         ended_at = $7
     where id = $1",
]);

impl Operation for End {
    type Output = bool;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let batch = lock(tx, self.tenant, &self.id).await?;
        let same = |batch: &Batch| batch.status == self.from && batch.made == self.made && batch.ended_at.is_none();
        let Some(batch) = batch.filter(same) else {
            return Ok(false);
        };
        let (completed, _) = count(tx, &batch).await?;
        let mut files: [Option<String>; 2] = [None, None];
        for (place, written) in self.written.iter().enumerate() {
            if let Some(Written { new, content }) = written {
                files[place] = Some(files::insert(tx, self.tenant, new, content).await?.id);
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
