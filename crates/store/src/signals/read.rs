//! Reads everything that one job's signal is derived from, in one keyed read.

use domain::limits::PREVIOUS_JOBS;
use domain::{Backoff, JobId, JobState, TenantId, Time};

use crate::db::tx::{Operation, Param, Prefetch, Row, Sql, Tx};
use crate::error::StoreError;
use crate::queue::blocked_reason;
use crate::queue::get;
use crate::queue::get::StoredJob;
use crate::signals::refine::StoredSignal;
use crate::store::Store;
use crate::workflows::journal::JournalHead;

/// What a signal is derived from, besides the queue snapshot.
#[derive(Clone, Debug)]
pub struct SignalSource {
    pub job: StoredJob,
    /// What the job's worker or the system reported, if anything.
    pub reported: Option<StoredSignal>,
    /// Earlier ended jobs of the same kind with the same subject or unique key, newest first. For a retry without
    /// either, the job that it retries.
    pub previous: Vec<PreviousJob>,
    /// What the previous jobs have in common with this job: `subject`, `key` or `parent`.
    pub previous_by: Option<&'static str>,
    pub has_log: bool,
    /// The backoff that blocks the job while it waits for its subject.
    pub backoff: Option<Backoff>,
    /// Sentences about the job's journal.
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreviousJob {
    pub id: JobId,
    pub state: JobState,
    pub finished_at: Time,
    pub error_code: Option<String>,
    pub phase: Option<String>,
    pub attempt: i32,
}

/// The result of looking up a job for its signal.
pub enum SignalRead {
    Found(Box<SignalSource>),
    /// The job was pruned and only its history remains, from which no signal can be derived.
    Pruned,
    NotFound,
}

impl Store {
    /// Reads the sources of one job's signal.
    pub async fn signal_source(&self, tenant: TenantId, job: JobId) -> Result<SignalRead, StoreError> {
        self.read(ReadSignal { tenant, job }).await
    }
}

struct ReadSignal {
    tenant: TenantId,
    job: JobId,
}

// The columns of a job and of its signal. A column that both have is prefixed for the signal.
const LIVE: Sql = Sql::both(&["select j.id, j.tenant, j.queue, j.kind, j.priority, j.affinity, j.guarded, j.state,
         j.payload, j.run_at, j.attempt, j.max_attempts, j.epoch, j.worker, j.started_at, j.finished_at,
         j.created_at, j.updated_at, j.timeout_s, j.retry, j.subject, j.process, j.run, j.unique_key,
         j.concurrency_key, j.tags, j.phase, j.progress, j.result, j.error, j.webhook, j.parent, j.retried_as,
         j.principal, j.actor, j.triggered_by, j.depth, j.version, j.parked, j.lane, s.epoch as signal_epoch,
         s.kind as signal_kind, s.summary, s.eta_s, s.last_known_outcome, s.next_actions, s.diagnostics,
         s.payload as signal_payload, s.updated_at as signal_updated_at, w.entries, w.resolved, w.bytes, w.drift
     from live_jobs j left join signals s on s.job = j.id and s.tenant = j.tenant
         left join journals w on w.job = j.id and w.tenant = j.tenant where j.id = $1 and j.tenant = $2"]);
const ENDED: Sql = Sql::both(&["select j.id, j.tenant, j.queue, j.kind, j.priority, j.affinity, j.guarded, j.state,
         j.payload, j.run_at, j.attempt, j.max_attempts, j.epoch, j.worker, j.started_at, j.finished_at,
         j.created_at, j.updated_at, j.timeout_s, j.retry, j.subject, j.process, j.run, j.unique_key,
         j.concurrency_key, j.tags, j.phase, j.progress, j.result, j.error, j.webhook, j.parent, j.retried_as,
         j.principal, j.actor, j.triggered_by, j.depth, j.version, j.parked, j.lane, s.epoch as signal_epoch,
         s.kind as signal_kind, s.summary, s.eta_s, s.last_known_outcome, s.next_actions, s.diagnostics,
         s.payload as signal_payload, s.updated_at as signal_updated_at, w.entries, w.resolved, w.bytes, w.drift
     from ended_jobs j left join signals s on s.job = j.id and s.tenant = j.tenant
         left join journals w on w.job = j.id and w.tenant = j.tenant where j.id = $1 and j.tenant = $2"]);
const HAS_HISTORY: Sql = Sql::both(&["select 1 from history where job = $1 and tenant = $2 limit 1"]);
// A subject or key may have had many jobs of other kinds, so only its 50 newest are considered.
const BY_SUBJECT: Sql = Sql::both(&["select e.id, e.state, e.finished_at, e.error_code, e.phase, e.attempt
     from (select id, lane, state, finished_at, error_code, phase, attempt from ended
           where tenant = $1 and subject = $2 and id < $3 order by id desc limit 50) e
     join lanes l on l.lane = e.lane where l.kind = $4 order by e.id desc limit $5"]);
const BY_KEY: Sql = Sql::both(&["select e.id, e.state, e.finished_at, e.error_code, e.phase, e.attempt
     from (select id, lane, state, finished_at, error_code, phase, attempt from ended
           where tenant = $1 and unique_key = $2 and id < $3 order by id desc limit 50) e
     join lanes l on l.lane = e.lane where l.kind = $4 order by e.id desc limit $5"]);
const BY_ID: Sql = Sql::both(&["select id, state, finished_at, error_code, phase, attempt from ended
     where tenant = $1 and id = $2"]);
const LOG: Sql = Sql::both(&["select 1 from artifacts where job = $1 and name = 'log'"]);

impl Operation for ReadSignal {
    type Output = SignalRead;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    fn prefetch(&self) -> Vec<Prefetch<'_>> {
        let params = vec![Param::from(self.job), Param::Int(self.tenant.0)];
        vec![Prefetch { sql: LIVE, columns: Vec::new(), params }]
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<SignalRead, StoreError> {
        match source(tx, self.tenant, self.job).await? {
            Some(source) => Ok(SignalRead::Found(Box::new(source))),
            None => {
                let row = tx.query_opt(&HAS_HISTORY, &[Param::from(self.job), Param::Int(self.tenant.0)]).await?;
                Ok(if row.is_some() { SignalRead::Pruned } else { SignalRead::NotFound })
            }
        }
    }
}

/// Reads the sources within a transaction. Returns `None` if the job is neither live nor ended.
pub(crate) async fn source(tx: &mut Tx<'_>, tenant: TenantId, job: JobId) -> Result<Option<SignalSource>, StoreError> {
    let params = [Param::from(job), Param::Int(tenant.0)];
    let row = match tx.query_opt(&LIVE, &params).await? {
        Some(row) => Some(row),
        None => tx.query_opt(&ENDED, &params).await?,
    };
    let Some(row) = row else { return Ok(None) };
    let (mut job, reported) = (get::read(&row)?, StoredSignal::read(&row)?);
    let journal = if row.is_null("entries")? { JournalHead::default() } else { JournalHead::read(&row)? };
    let backoff = blocked_reason::find(tx, tenant, &mut job).await?;
    let (previous, previous_by) = previous(tx, tenant, &job).await?;
    // Only an attempt writes a log.
    let has_log = job.attempt > 0 && tx.query_opt(&LOG, &[Param::from(job.id)]).await?.is_some();
    Ok(Some(SignalSource { job, reported, previous, previous_by, has_log, backoff, warnings: journal.warnings() }))
}

/// Returns the previous jobs and what they have in common with this one.
async fn previous(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    job: &StoredJob,
) -> Result<(Vec<PreviousJob>, Option<&'static str>), StoreError> {
    let tenant = Param::Int(tenant.0);
    let params =
        |key| [tenant, key, Param::from(job.id), Param::Text(job.lane.kind.as_str()), Param::Int(PREVIOUS_JOBS as i64)];
    let (rows, by) = match (&job.subject, &job.unique_key, job.parent) {
        (Some(subject), ..) => (tx.query(&BY_SUBJECT, &params(Param::Text(subject))).await?, "subject"),
        (None, Some(key), _) => (tx.query(&BY_KEY, &params(Param::Text(key))).await?, "key"),
        (None, None, Some(parent)) => (tx.query(&BY_ID, &[tenant, Param::from(parent)]).await?, "parent"),
        (None, None, None) => return Ok((Vec::new(), None)),
    };
    Ok((rows.iter().map(PreviousJob::read).collect::<Result<_, _>>()?, Some(by)))
}

impl PreviousJob {
    pub(super) fn read(row: &Row) -> Result<Self, StoreError> {
        let state = row.text("state")?;
        Ok(Self {
            id: row.job("id")?,
            state: JobState::parse(&state).ok_or_else(|| StoreError::unexpected(format!("state {state}")))?,
            finished_at: row.time("finished_at")?,
            error_code: row.opt_text("error_code")?,
            phase: row.opt_text("phase")?,
            attempt: row.int("attempt")? as i32,
        })
    }
}
